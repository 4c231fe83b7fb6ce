"""LLVM IR of a recorded call, part 1: match a call against a record.

`native_call.ir` substitutes a number for each `$NAME`; `smelt.runtime.native_call` explains.

>>> "@matches" in ARGUMENTS
True
"""

from __future__ import annotations

from typing import Final

OBJECTS: Final = """
@state = internal global ptr null

; Set the address of the state that the process has filled in.
define void @smelt_bind(ptr %given) {
  store ptr %given, ptr @state
  ret void
}

define internal ptr @word(ptr %base, i64 %offset) alwaysinline {
  %at = getelementptr i8, ptr %base, i64 %offset
  %found = load ptr, ptr %at
  ret ptr %found
}

define internal i64 @number(ptr %base, i64 %offset) alwaysinline {
  %at = getelementptr i8, ptr %base, i64 %offset
  %found = load i64, ptr %at
  ret i64 %found
}

; Read an object's slot, whose offset is in the state; null if it was never set.
define internal ptr @slot(ptr %state, i64 %offset.at, ptr %x) alwaysinline {
  %offset = call i64 @number(ptr %state, i64 %offset.at)
  %found = call ptr @word(ptr %x, i64 %offset)
  ret ptr %found
}

; Set a slot of a new object, which takes over the reference.
define internal void @put(ptr %state, i64 %offset.at, ptr %x, ptr %given) alwaysinline {
  %offset = call i64 @number(ptr %state, i64 %offset.at)
  %at = getelementptr i8, ptr %x, i64 %offset
  store ptr %given, ptr %at
  ret void
}

define internal void @hold(ptr %state, ptr %x) alwaysinline {
  %function = call ptr @word(ptr %state, i64 $INCREF)
  call void %function(ptr %x)
  ret void
}

define internal void @drop(ptr %state, ptr %x) alwaysinline {
  %function = call ptr @word(ptr %state, i64 $DECREF)
  call void %function(ptr %x)
  ret void
}

; Set a slot of a new object to a shared object.
define internal void @share(ptr %state, i64 %offset.at, ptr %x, ptr %given) alwaysinline {
  call void @hold(ptr %state, ptr %given)
  call void @put(ptr %state, i64 %offset.at, ptr %x, ptr %given)
  ret void
}
"""

MATCH: Final = """
define internal i1 @same_words(ptr %a, ptr %b, i64 %n) {
entry:
  br label %test
test:
  %k = phi i64 [ 0, %entry ], [ %next, %more ]
  %over = icmp sge i64 %k, %n
  br i1 %over, label %yes, label %look
look:
  %a.at = getelementptr i64, ptr %a, i64 %k
  %b.at = getelementptr i64, ptr %b, i64 %k
  %x = load i64, ptr %a.at
  %y = load i64, ptr %b.at
  %same = icmp eq i64 %x, %y
  br i1 %same, label %more, label %no
more:
  %next = add i64 %k, 1
  br label %test
yes:
  ret i1 true
no:
  ret i1 false
}

; Whether the memory of values of a class may be written by others.
define internal i1 @shared(ptr %state, ptr %class) alwaysinline {
  %foreign = call ptr @word(ptr %state, i64 $FOREIGN)
  %watched = call ptr @word(ptr %state, i64 $WATCHED)
  %is.foreign = icmp eq ptr %class, %foreign
  %is.watched = icmp eq ptr %class, %watched
  %either = or i1 %is.foreign, %is.watched
  ret i1 %either
}

; The NumPy array of an argument: itself, or the data of a Smelt array; null for other objects.
define internal ptr @elements(ptr %state, ptr %x) {
entry:
  %kind = call ptr @word(ptr %x, i64 $KIND)
  %ndarray = call ptr @word(ptr %state, i64 $NDARRAY)
  %plain = icmp eq ptr %kind, %ndarray
  br i1 %plain, label %itself, label %ours
itself:
  ret ptr %x
ours:
  %array = call ptr @word(ptr %state, i64 $ARRAY)
  %known = icmp eq ptr %kind, %array
  br i1 %known, label %open, label %none
open:
  %node = call ptr @slot(ptr %state, i64 $NODE_AT, ptr %x)
  %no.node = icmp eq ptr %node, null
  br i1 %no.node, label %none, label %look
look:
  %class = call ptr @word(ptr %node, i64 $KIND)
  %value = call ptr @word(ptr %state, i64 $VALUE)
  %is.value = icmp eq ptr %class, %value
  %shared = call i1 @shared(ptr %state, ptr %class)
  %any = or i1 %is.value, %shared
  br i1 %any, label %read, label %none
read:
  %data = call ptr @slot(ptr %state, i64 $DATA_AT, ptr %node)
  %pending = icmp eq ptr %data, null
  br i1 %pending, label %none, label %check
check:
  %data.kind = call ptr @word(ptr %data, i64 $KIND)
  %is.array = icmp eq ptr %data.kind, %ndarray
  %found = select i1 %is.array, ptr %data, ptr null
  ret ptr %found
none:
  ret ptr null
}

; Whether an array matches a row of a record.
define internal i1 @fits(ptr %row, ptr %data) {
entry:
  %descr.is = call ptr @word(ptr %data, i64 $ND_DESCR)
  %descr.was = call ptr @word(ptr %row, i64 8)
  %same.descr = icmp eq ptr %descr.is, %descr.was
  %rank.at = getelementptr i8, ptr %data, i64 $ND_RANK
  %rank.is = load i32, ptr %rank.at
  %rank.wide = sext i32 %rank.is to i64
  %rank.was = call i64 @number(ptr %row, i64 24)
  %same.rank = icmp eq i64 %rank.wide, %rank.was
  %flags.at = getelementptr i8, ptr %data, i64 $ND_FLAGS
  %flags.all = load i32, ptr %flags.at
  %flags.is = and i32 %flags.all, $READABLE
  %flags.wide = zext i32 %flags.is to i64
  %flags.was = call i64 @number(ptr %row, i64 16)
  %same.flags = icmp eq i64 %flags.wide, %flags.was
  %two = and i1 %same.descr, %same.rank
  %three = and i1 %two, %same.flags
  br i1 %three, label %sizes, label %no
sizes:
  %dims.is = call ptr @word(ptr %data, i64 $ND_DIMS)
  %dims.was = call ptr @word(ptr %row, i64 32)
  %same.dims = call i1 @same_words(ptr %dims.is, ptr %dims.was, i64 %rank.was)
  br i1 %same.dims, label %order, label %no
order:
  %strides.was = call ptr @word(ptr %row, i64 40)
  %contiguous = icmp eq ptr %strides.was, null
  br i1 %contiguous, label %yes, label %steps
steps:
  %strides.is = call ptr @word(ptr %data, i64 $ND_STRIDES)
  %same.steps = call i1 @same_words(ptr %strides.is, ptr %strides.was, i64 %rank.was)
  ret i1 %same.steps
yes:
  ret i1 true
no:
  ret i1 false
}
"""

NESTS: Final = """
; Whether two keys or names are equal: the same object, or equal strings.
define internal i1 @same_key(ptr %state, ptr %a, ptr %b) alwaysinline {
entry:
  %same = icmp eq ptr %a, %b
  br i1 %same, label %yes, label %types
types:
  %a.type = call ptr @word(ptr %a, i64 $KIND)
  %b.type = call ptr @word(ptr %b, i64 $KIND)
  %string = call ptr @word(ptr %state, i64 $STRING)
  %a.string = icmp eq ptr %a.type, %string
  %b.string = icmp eq ptr %b.type, %string
  %strings = and i1 %a.string, %b.string
  br i1 %strings, label %compare, label %no
compare:
  %function = call ptr @word(ptr %state, i64 $STRING_COMPARE)
  %order = call i32 %function(ptr %a, ptr %b)
  %equal = icmp eq i32 %order, 0
  ret i1 %equal
yes:
  ret i1 true
no:
  ret i1 false
}

; Whether the call has the record's number of positional arguments and its keywords.
define internal i1 @names_fit(ptr %state, ptr %record, i64 %n, ptr %keywords) {
entry:
  %positional = call i64 @number(ptr %record, i64 $POSITIONAL)
  %name.count = call i64 @number(ptr %record, i64 $NAME_COUNT)
  %same.n = icmp eq i64 %positional, %n
  br i1 %same.n, label %named, label %no
named:
  %none = icmp eq ptr %keywords, null
  br i1 %none, label %nothing, label %count
nothing:
  %expected.none = icmp eq i64 %name.count, 0
  ret i1 %expected.none
count:
  %size = call ptr @word(ptr %state, i64 $TUPLE_SIZE)
  %get = call ptr @word(ptr %state, i64 $TUPLE_GET)
  %names = call ptr @word(ptr %record, i64 $NAMES)
  %many = call i64 %size(ptr %keywords)
  %same.count = icmp eq i64 %many, %name.count
  br i1 %same.count, label %test, label %no
test:
  %k = phi i64 [ 0, %count ], [ %next, %more ]
  %over = icmp sge i64 %k, %many
  br i1 %over, label %yes, label %look
look:
  %name = call ptr %get(ptr %keywords, i64 %k)
  %expected.at = getelementptr ptr, ptr %names, i64 %k
  %expected = load ptr, ptr %expected.at
  %same = call i1 @same_key(ptr %state, ptr %name, ptr %expected)
  br i1 %same, label %more, label %no
more:
  %next = add i64 %k, 1
  br label %test
yes:
  ret i1 true
no:
  ret i1 false
}

; Whether a container has this type and size; stores its items.
define internal i1 @holds(ptr %state, ptr %x, i64 %count, ptr %items, i64 %type.at, i64 %size.at,
                          i64 %get.at) {
entry:
  %type = call ptr @word(ptr %x, i64 $KIND)
  %wanted = call ptr @word(ptr %state, i64 %type.at)
  %same.type = icmp eq ptr %type, %wanted
  br i1 %same.type, label %size, label %no
size:
  %size.of = call ptr @word(ptr %state, i64 %size.at)
  %many = call i64 %size.of(ptr %x)
  %same.size = icmp eq i64 %many, %count
  br i1 %same.size, label %begin, label %no
begin:
  %get = call ptr @word(ptr %state, i64 %get.at)
  br label %test
test:
  %k = phi i64 [ 0, %begin ], [ %next, %take ]
  %over = icmp sge i64 %k, %count
  br i1 %over, label %yes, label %look
look:
  %item = call ptr %get(ptr %x, i64 %k)
  %gone = icmp eq ptr %item, null
  br i1 %gone, label %no, label %take
take:
  %to = getelementptr ptr, ptr %items, i64 %k
  store ptr %item, ptr %to
  %next = add i64 %k, 1
  br label %test
yes:
  ret i1 true
no:
  ret i1 false
}

; Whether a dict has these keys in this order; stores its values.
define internal i1 @holds_by_key(ptr %state, ptr %x, i64 %count, ptr %items, ptr %keys) {
entry:
  %position = alloca i64
  %key.at = alloca ptr
  %value.at = alloca ptr
  store i64 0, ptr %position
  %type = call ptr @word(ptr %x, i64 $KIND)
  %dict = call ptr @word(ptr %state, i64 $DICT)
  %same.type = icmp eq ptr %type, %dict
  br i1 %same.type, label %size, label %no
size:
  %size.of = call ptr @word(ptr %state, i64 $DICT_SIZE)
  %many = call i64 %size.of(ptr %x)
  %same.size = icmp eq i64 %many, %count
  br i1 %same.size, label %begin, label %no
begin:
  %step = call ptr @word(ptr %state, i64 $DICT_NEXT)
  br label %test
test:
  %k = phi i64 [ 0, %begin ], [ %next, %take ]
  %over = icmp sge i64 %k, %count
  br i1 %over, label %yes, label %look
look:
  %found = call i32 %step(ptr %x, ptr %position, ptr %key.at, ptr %value.at)
  %end = icmp eq i32 %found, 0
  br i1 %end, label %no, label %compare
compare:
  %key = load ptr, ptr %key.at
  %expected.at = getelementptr ptr, ptr %keys, i64 %k
  %expected = load ptr, ptr %expected.at
  %same = call i1 @same_key(ptr %state, ptr %key, ptr %expected)
  br i1 %same, label %take, label %no
take:
  %value = load ptr, ptr %value.at
  %to = getelementptr ptr, ptr %items, i64 %k
  store ptr %value, ptr %to
  %next = add i64 %k, 1
  br label %test
yes:
  ret i1 true
no:
  ret i1 false
}

; Whether the containers match the record; stores their items.
define internal i1 @unfolds(ptr %state, ptr %record, ptr %items) {
entry:
  %rows = call ptr @word(ptr %record, i64 $NESTS)
  %count = call i64 @number(ptr %record, i64 $NEST_COUNT)
  br label %test
test:
  %k = phi i64 [ 0, %entry ], [ %next, %more ]
  %over = icmp sge i64 %k, %count
  br i1 %over, label %yes, label %look
look:
  %row.offset = mul i64 %k, $NEST_BYTES
  %row = getelementptr i8, ptr %rows, i64 %row.offset
  %kind = call i64 @number(ptr %row, i64 0)
  %item = call i64 @number(ptr %row, i64 8)
  %many = call i64 @number(ptr %row, i64 16)
  %first = call i64 @number(ptr %row, i64 24)
  %keys = call ptr @word(ptr %row, i64 32)
  %x.at = getelementptr ptr, ptr %items, i64 %item
  %x = load ptr, ptr %x.at
  %to = getelementptr ptr, ptr %items, i64 %first
  switch i64 %kind, label %no [ i64 $NEST_TUPLE, label %tuple
                                i64 $NEST_LIST, label %list
                                i64 $NEST_DICT, label %dict
                                i64 $NEST_NONE, label %none ]
tuple:
  %a = call i1 @holds(ptr %state, ptr %x, i64 %many, ptr %to, i64 $TUPLE, i64 $TUPLE_SIZE,
                      i64 $TUPLE_GET)
  br i1 %a, label %more, label %no
list:
  %b = call i1 @holds(ptr %state, ptr %x, i64 %many, ptr %to, i64 $LIST, i64 $LIST_SIZE,
                      i64 $LIST_GET)
  br i1 %b, label %more, label %no
dict:
  %c = call i1 @holds_by_key(ptr %state, ptr %x, i64 %many, ptr %to, ptr %keys)
  br i1 %c, label %more, label %no
none:
  %nothing = call ptr @word(ptr %state, i64 $NONE)
  %d = icmp eq ptr %x, %nothing
  br i1 %d, label %more, label %no
more:
  %next = add i64 %k, 1
  br label %test
yes:
  ret i1 true
no:
  ret i1 false
}
"""

ARGUMENTS: Final = """
; Whether a record is for the settings in force and has the call's names of arguments.
define internal i1 @settings_fit(ptr %state, ptr %record, i64 %given, ptr %keywords, ptr %scope,
                                 ptr %printed) {
entry:
  %scope.was = call ptr @word(ptr %record, i64 $SCOPE)
  %printed.was = call ptr @word(ptr %record, i64 $PRINTED)
  %same.names = call i1 @names_fit(ptr %state, ptr %record, i64 %given, ptr %keywords)
  %same.scope = icmp eq ptr %scope, %scope.was
  %same.text = icmp eq ptr %printed, %printed.was
  %two = and i1 %same.names, %same.scope
  %three = and i1 %two, %same.text
  ret i1 %three
}

; Whether the record matches this call; stores the arrays and then the numbers of the arguments.
define internal i1 @matches(ptr %state, ptr %record, ptr %args, i64 %given, ptr %arrays) {
entry:
  %overflow = alloca i32
  %n = call i64 @number(ptr %record, i64 $COUNT)
  %numbers = getelementptr i64, ptr %arrays, i64 %n
  %room = getelementptr i64, ptr %numbers, i64 %n
  %nests = call i64 @number(ptr %record, i64 $NEST_COUNT)
  %flat = icmp eq i64 %nests, 0
  br i1 %flat, label %rows, label %unfold.begin
unfold.begin:
  %names = call i64 @number(ptr %record, i64 $NAME_COUNT)
  %all = add i64 %given, %names
  br label %unfold.test
unfold.test:
  %u = phi i64 [ 0, %unfold.begin ], [ %u.next, %unfold.copy ]
  %u.over = icmp sge i64 %u, %all
  br i1 %u.over, label %unfold, label %unfold.copy
unfold.copy:
  %u.from = getelementptr ptr, ptr %args, i64 %u
  %u.to = getelementptr ptr, ptr %room, i64 %u
  %u.x = load ptr, ptr %u.from
  store ptr %u.x, ptr %u.to
  %u.next = add i64 %u, 1
  br label %unfold.test
unfold:
  %unfolds = call i1 @unfolds(ptr %state, ptr %record, ptr %room)
  br i1 %unfolds, label %rows, label %no
rows:
  %items = phi ptr [ %args, %entry ], [ %room, %unfold ]
  %rows.first = call ptr @word(ptr %record, i64 $ARGUMENTS)
  br label %test
test:
  %k = phi i64 [ 0, %rows ], [ %next, %more ]
  %over = icmp sge i64 %k, %n
  br i1 %over, label %captured, label %look
look:
  %row.offset = mul i64 %k, $ARGUMENT_BYTES
  %row = getelementptr i8, ptr %rows.first, i64 %row.offset
  %item = call i64 @number(ptr %row, i64 48)
  %x.at = getelementptr ptr, ptr %items, i64 %item
  %x = load ptr, ptr %x.at
  %array.at = getelementptr ptr, ptr %arrays, i64 %k
  %number.at = getelementptr i64, ptr %numbers, i64 %k
  store ptr null, ptr %array.at
  %type = call ptr @word(ptr %x, i64 $KIND)
  %kind = call i64 @number(ptr %row, i64 0)
  switch i64 %kind, label %no [ i64 $KIND_ARRAY, label %array
                                i64 $KIND_FLOAT, label %float
                                i64 $KIND_INT, label %int
                                i64 $KIND_SCALAR, label %scalar
                                i64 $KIND_SAME, label %same
                                i64 $KIND_OUT, label %out ]
out:                                               ; a Smelt array would get another value
  %plain.type = call ptr @word(ptr %state, i64 $NDARRAY)
  %is.plain = icmp eq ptr %type, %plain.type
  br i1 %is.plain, label %array, label %no
array:
  %data = call ptr @elements(ptr %state, ptr %x)
  %none = icmp eq ptr %data, null
  br i1 %none, label %no, label %compare
compare:
  store ptr %data, ptr %array.at
  %fits = call i1 @fits(ptr %row, ptr %data)
  br i1 %fits, label %more, label %no
float:
  %float.type = call ptr @word(ptr %state, i64 $FLOAT)
  %is.float = icmp eq ptr %type, %float.type
  br i1 %is.float, label %float.read, label %no
float.read:
  %as.double = call ptr @word(ptr %state, i64 $AS_DOUBLE)
  %real = call double %as.double(ptr %x)
  store double %real, ptr %number.at
  br label %more
scalar:
  %scalar.type = call ptr @word(ptr %row, i64 8)
  %is.scalar = icmp eq ptr %type, %scalar.type
  br i1 %is.scalar, label %scalar.read, label %no
scalar.read:                                       ; short scalars are followed by unused bytes
  %scalar.word = call i64 @number(ptr %x, i64 $SCALAR_AT)
  store i64 %scalar.word, ptr %number.at
  br label %more
same:                                              ; constant of the record, no kernel reads it
  %same.was = call ptr @word(ptr %row, i64 8)
  %is.same = icmp eq ptr %x, %same.was
  br i1 %is.same, label %more, label %no
int:
  %int.type = call ptr @word(ptr %state, i64 $INT)
  %is.int = icmp eq ptr %type, %int.type
  br i1 %is.int, label %int.read, label %no
int.read:
  %as.long = call ptr @word(ptr %state, i64 $AS_LONG)
  %whole = call i64 %as.long(ptr %x, ptr %overflow)
  %beyond = load i32, ptr %overflow
  %inside = icmp eq i32 %beyond, 0
  %lowest = icmp ne i64 %whole, -9223372036854775808
  %small = and i1 %inside, %lowest
  store i64 %whole, ptr %number.at
  br i1 %small, label %more, label %no
more:
  %next = add i64 %k, 1
  br label %test
captured:
  %captured.first = call ptr @word(ptr %record, i64 $CAPTURED)
  %captured.count = call i64 @number(ptr %record, i64 $CAPTURED_COUNT)
  %value.type = call ptr @word(ptr %state, i64 $VALUE)
  %none.is = call ptr @word(ptr %state, i64 $NONE)
  br label %c.test
c.test:
  %c = phi i64 [ 0, %captured ], [ %c.next, %c.more ]
  %c.over = icmp sge i64 %c, %captured.count
  br i1 %c.over, label %yes, label %c.look
c.look:
  %c.offset = mul i64 %c, $CAPTURED_BYTES
  %c.row = getelementptr i8, ptr %captured.first, i64 %c.offset
  %c.fit = getelementptr i8, ptr %c.row, i64 16
  %value = call ptr @word(ptr %c.row, i64 0)
  %expected = call ptr @word(ptr %c.row, i64 8)
  %c.type = call ptr @word(ptr %value, i64 $KIND)
  %own = icmp eq ptr %c.type, %value.type
  br i1 %own, label %c.data, label %c.shared
c.shared:                                          ; read directly, unless a computation is pending
  %c.foreign = call i1 @shared(ptr %state, ptr %c.type)
  br i1 %c.foreign, label %c.sample, label %no
c.sample:
  %sample = call ptr @slot(ptr %state, i64 $SAMPLE_AT, ptr %value)
  %untouched = icmp eq ptr %sample, %none.is
  br i1 %untouched, label %c.data, label %no
c.data:
  %now = call ptr @slot(ptr %state, i64 $DATA_AT, ptr %value)
  %same.data = icmp eq ptr %now, %expected
  br i1 %same.data, label %c.fits, label %no
c.fits:                                            ; it may have been resized in place
  %c.same = call i1 @fits(ptr %c.fit, ptr %now)
  br i1 %c.same, label %c.more, label %no
c.more:
  %c.next = add i64 %c, 1
  br label %c.test
yes:
  ret i1 true
no:
  ret i1 false
}
"""

OUTS: Final = """
; Whether bytes `first` to `end` are apart from an array, whose row says where its memory lies.
define internal i1 @is_apart(ptr %array, ptr %row, i64 %first, i64 %end) alwaysinline {
  %base = call i64 @number(ptr %array, i64 $ND_DATA)
  %low.offset = call i64 @number(ptr %row, i64 56)
  %high.offset = call i64 @number(ptr %row, i64 64)
  %low = add i64 %base, %low.offset
  %high = add i64 %base, %high.offset
  %before = icmp ule i64 %high, %first
  %after = icmp ule i64 %end, %low
  %apart = or i1 %before, %after
  ret i1 %apart
}

; Whether the arrays of `out=` may be written, and overlap each other and what is read as recorded.
define internal i1 @outs_apart(ptr %state, ptr %record, ptr %arrays) {
entry:
  %n = call i64 @number(ptr %record, i64 $COUNT)
  %outs = call i64 @number(ptr %record, i64 $OUT_COUNT)
  %begin = sub i64 %n, %outs
  %rows = call ptr @word(ptr %record, i64 $ARGUMENTS)
  %captured = call ptr @word(ptr %record, i64 $CAPTURED)
  %captured.count = call i64 @number(ptr %record, i64 $CAPTURED_COUNT)
  br label %outs.test
outs.test:
  %o = phi i64 [ %begin, %entry ], [ %o.next, %captured.test ]
  %over = icmp sge i64 %o, %n
  br i1 %over, label %yes, label %out
out:
  %o.next = add i64 %o, 1
  %array.at = getelementptr ptr, ptr %arrays, i64 %o
  %array = load ptr, ptr %array.at
  %row.offset = mul i64 %o, $ARGUMENT_BYTES
  %row = getelementptr i8, ptr %rows, i64 %row.offset
  %first = call i64 @number(ptr %array, i64 $ND_DATA)
  %bytes = call i64 @number(ptr %row, i64 64)
  %end = add i64 %first, %bytes
  %replaced = call i64 @number(ptr %row, i64 72)
  %flags.at = getelementptr i8, ptr %array, i64 $ND_FLAGS
  %flags = load i32, ptr %flags.at
  %writeable = and i32 %flags, $WRITEABLE
  %locked = icmp eq i32 %writeable, 0
  br i1 %locked, label %no, label %test
test:
  %k = phi i64 [ 0, %out ], [ %k.next, %look ], [ %k.next, %same ], [ %k.next, %compare ]
  %k.over = icmp sge i64 %k, %o
  br i1 %k.over, label %captured.test, label %look
look:
  %k.next = add i64 %k, 1
  %x.at = getelementptr ptr, ptr %arrays, i64 %k
  %x = load ptr, ptr %x.at
  %is.number = icmp eq ptr %x, null
  br i1 %is.number, label %test, label %which
which:
  %is.replaced = icmp eq i64 %k, %replaced
  br i1 %is.replaced, label %same, label %compare
same:
  %x.first = call i64 @number(ptr %x, i64 $ND_DATA)
  %is.same = icmp eq i64 %x.first, %first
  br i1 %is.same, label %test, label %no
compare:
  %x.offset = mul i64 %k, $ARGUMENT_BYTES
  %x.row = getelementptr i8, ptr %rows, i64 %x.offset
  %x.apart = call i1 @is_apart(ptr %x, ptr %x.row, i64 %first, i64 %end)
  br i1 %x.apart, label %test, label %no
captured.test:
  %c = phi i64 [ 0, %test ], [ %c.next, %captured.look ]
  %c.over = icmp sge i64 %c, %captured.count
  br i1 %c.over, label %outs.test, label %captured.look
captured.look:
  %c.next = add i64 %c, 1
  %c.offset = mul i64 %c, $CAPTURED_BYTES
  %c.value = getelementptr i8, ptr %captured, i64 %c.offset
  %c.row = getelementptr i8, ptr %c.value, i64 16
  %c.array = call ptr @word(ptr %c.value, i64 8)
  %c.apart = call i1 @is_apart(ptr %c.array, ptr %c.row, i64 %first, i64 %end)
  br i1 %c.apart, label %captured.test, label %no
yes:
  ret i1 true
no:
  ret i1 false
}

; Whether no operator of this thread waits to read memory; runs no Python code.
define internal i1 @nothing_pending(ptr %state) {
entry:
  %local = call ptr @word(ptr %state, i64 $LOCAL)
  %attribute = call ptr @word(ptr %state, i64 $GET_ATTRIBUTE)
  %pending.name = call ptr @word(ptr %state, i64 $PENDING)
  %pending = call ptr %attribute(ptr %local, ptr %pending.name)
  %no.pending = icmp eq ptr %pending, null
  br i1 %no.pending, label %no, label %list
list:
  %list.size = call ptr @word(ptr %state, i64 $LIST_SIZE)
  %waiting = call i64 %list.size(ptr %pending)
  call void @drop(ptr %state, ptr %pending)
  %none.waits = icmp eq i64 %waiting, 0
  br i1 %none.waits, label %samples, label %no
samples:
  %sampled.name = call ptr @word(ptr %state, i64 $SAMPLED)
  %sampled = call ptr %attribute(ptr %local, ptr %sampled.name)
  %no.sampled = icmp eq ptr %sampled, null
  br i1 %no.sampled, label %no, label %members
members:
  %members.name = call ptr @word(ptr %state, i64 $MEMBERS)
  %set = call ptr %attribute(ptr %sampled, ptr %members.name)
  call void @drop(ptr %state, ptr %sampled)
  %no.set = icmp eq ptr %set, null
  br i1 %no.set, label %no, label %count
count:
  %set.size = call ptr @word(ptr %state, i64 $SET_SIZE)
  %many = call i64 %set.size(ptr %set)
  call void @drop(ptr %state, ptr %set)
  %none = icmp eq i64 %many, 0
  br i1 %none, label %yes, label %no
yes:
  ret i1 true
no:
  %clear = call ptr @word(ptr %state, i64 $CLEAR)
  call void %clear()
  ret i1 false
}

; The argument `out=` of a call, or null.
define internal ptr @out_argument(ptr %record, ptr %args) {
entry:
  %item = call i64 @number(ptr %record, i64 $OUT)
  %fresh = icmp eq i64 %item, 0
  br i1 %fresh, label %none, label %read
read:
  %index = sub i64 %item, 1
  %at = getelementptr ptr, ptr %args, i64 %index
  %out = load ptr, ptr %at
  ret ptr %out
none:
  ret ptr null
}

; Whether a call may write its results into its arrays of `out=`, if it has any.
define internal i1 @outs_fit(ptr %state, ptr %record, ptr %arrays) {
entry:
  %out = call i64 @number(ptr %record, i64 $OUT)
  %fresh = icmp eq i64 %out, 0
  br i1 %fresh, label %yes, label %check
check:
  %apart = call i1 @outs_apart(ptr %state, ptr %record, ptr %arrays)
  br i1 %apart, label %ask, label %no
ask:
  %idle = call i1 @nothing_pending(ptr %state)
  ret i1 %idle
yes:
  ret i1 true
no:
  ret i1 false
}
"""
