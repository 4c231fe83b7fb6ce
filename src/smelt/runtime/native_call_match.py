"""LLVM IR of a repeated call, first part: the call, and whether a record is of it.

`$NAME` stands where `native_call.ir` puts a number; `smelt.runtime.native_call` explains.

>>> "@smelt_call" in CALL
True
"""

from __future__ import annotations

from typing import Final

OBJECTS: Final = """
@state = internal global ptr null

; Where the tables are that the process has filled in.
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

; A slot of an object, whose offset stands in the state; null if it was never set.
define internal ptr @slot(ptr %state, i64 %offset.at, ptr %x) alwaysinline {
  %offset = call i64 @number(ptr %state, i64 %offset.at)
  %found = call ptr @word(ptr %x, i64 %offset)
  ret ptr %found
}

; Sets a slot of a new object; the object takes the reference.
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

; Sets a slot of a new object to what others refer to as well.
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

; The NumPy array behind an argument: itself, or what one of our arrays holds; null for others.
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
  %foreign = call ptr @word(ptr %state, i64 $FOREIGN)
  %watched = call ptr @word(ptr %state, i64 $WATCHED)
  %is.value = icmp eq ptr %class, %value
  %is.foreign = icmp eq ptr %class, %foreign
  %is.watched = icmp eq ptr %class, %watched
  %either = or i1 %is.value, %is.foreign
  %any = or i1 %either, %is.watched
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

; Whether an array is what a row of a record says.
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

ARGUMENTS: Final = """
; Whether the record is of this call; fills in the arrays and numbers of the arguments.
define internal i1 @matches(ptr %state, ptr %record, ptr %args, i64 %n, ptr %scope, ptr %printed,
                            ptr %arrays, ptr %numbers) {
entry:
  %overflow = alloca i32
  %count = call i64 @number(ptr %record, i64 $COUNT)
  %scope.was = call ptr @word(ptr %record, i64 $SCOPE)
  %printed.was = call ptr @word(ptr %record, i64 $PRINTED)
  %same.count = icmp eq i64 %count, %n
  %same.scope = icmp eq ptr %scope, %scope.was
  %same.text = icmp eq ptr %printed, %printed.was
  %two = and i1 %same.count, %same.scope
  %three = and i1 %two, %same.text
  br i1 %three, label %rows, label %no
rows:
  %rows.first = call ptr @word(ptr %record, i64 $ARGUMENTS)
  br label %test
test:
  %k = phi i64 [ 0, %rows ], [ %next, %more ]
  %over = icmp sge i64 %k, %n
  br i1 %over, label %captured, label %look
look:
  %row.offset = mul i64 %k, $ARGUMENT_BYTES
  %row = getelementptr i8, ptr %rows.first, i64 %row.offset
  %x.at = getelementptr ptr, ptr %args, i64 %k
  %x = load ptr, ptr %x.at
  %array.at = getelementptr ptr, ptr %arrays, i64 %k
  %number.at = getelementptr i64, ptr %numbers, i64 %k
  store ptr null, ptr %array.at
  %type = call ptr @word(ptr %x, i64 $KIND)
  %kind = call i64 @number(ptr %row, i64 0)
  switch i64 %kind, label %no [ i64 $KIND_ARRAY, label %array
                                i64 $KIND_FLOAT, label %float
                                i64 $KIND_INT, label %int ]
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
  %pairs = call ptr @word(ptr %record, i64 $CAPTURED)
  %pair.count = call i64 @number(ptr %record, i64 $CAPTURED_COUNT)
  %value.type = call ptr @word(ptr %state, i64 $VALUE)
  br label %c.test
c.test:
  %c = phi i64 [ 0, %captured ], [ %c.next, %c.more ]
  %c.over = icmp sge i64 %c, %pair.count
  br i1 %c.over, label %yes, label %c.look
c.look:
  %c.offset = mul i64 %c, 16
  %pair = getelementptr i8, ptr %pairs, i64 %c.offset
  %value = call ptr @word(ptr %pair, i64 0)
  %expected = call ptr @word(ptr %pair, i64 8)
  %c.type = call ptr @word(ptr %value, i64 $KIND)
  %own = icmp eq ptr %c.type, %value.type          ; nobody else may write to it
  br i1 %own, label %c.data, label %no
c.data:
  %now = call ptr @slot(ptr %state, i64 $DATA_AT, ptr %value)
  %same.data = icmp eq ptr %now, %expected
  br i1 %same.data, label %c.more, label %no
c.more:
  %c.next = add i64 %c, 1
  br label %c.test
yes:
  ret i1 true
no:
  ret i1 false
}
"""

CALL: Final = """
; The call itself, as CPython makes it (METH_FASTCALL | METH_KEYWORDS).
define ptr @smelt_call(ptr %self, ptr %args, i64 %n, ptr %keywords) {
entry:
  %arrays = alloca [$MOST_ARGUMENTS x ptr], align 16
  %numbers = alloca [$MOST_ARGUMENTS x i64], align 16
  %settings.at = alloca ptr
  %state = load ptr, ptr @state
  %local = call ptr @word(ptr %state, i64 $LOCAL)
  %tapes = call ptr @word(ptr %state, i64 $TAPES)
  %attribute = call ptr @word(ptr %state, i64 $GET_ATTRIBUTE)
  %taping = call ptr %attribute(ptr %local, ptr %tapes)
  %unknown = icmp eq ptr %taping, null
  br i1 %unknown, label %fail, label %told
told:
  call void @drop(ptr %state, ptr %taping)
  %zero = call ptr @word(ptr %state, i64 $ZERO)
  %open = icmp eq ptr %taping, %zero
  %plain = icmp eq ptr %keywords, null
  %line = call ptr @slot(ptr %state, i64 $LINE_AT, ptr %self)
  %has.line = icmp ne ptr %line, null
  %two = and i1 %open, %plain
  %three = and i1 %two, %has.line
  br i1 %three, label %known, label %slow
known:
  %line.type = call ptr @word(ptr %line, i64 $KIND)
  %expected = call ptr @word(ptr %state, i64 $LINE)
  %is.line = icmp eq ptr %line.type, %expected
  br i1 %is.line, label %settings, label %slow
settings:
  %variable = call ptr @word(ptr %state, i64 $SETTINGS)
  %get = call ptr @word(ptr %state, i64 $CONTEXT_GET)
  %status = call i32 %get(ptr %variable, ptr null, ptr %settings.at)
  %failed = icmp slt i32 %status, 0
  br i1 %failed, label %fail, label %compare
compare:                                          ; the context holds the settings, too
  %scope = load ptr, ptr %settings.at
  %printed = call ptr @slot(ptr %state, i64 $PRINTED_AT, ptr %scope)
  call void @drop(ptr %state, ptr %scope)
  %line.words = getelementptr i8, ptr %line, i64 $BYTES_AT
  %count = load i64, ptr %line.words
  br label %test
test:
  %k = phi i64 [ 0, %compare ], [ %next, %other ]
  %over = icmp sge i64 %k, %count
  br i1 %over, label %slow, label %look
look:
  %next = add i64 %k, 1
  %record.at = getelementptr i64, ptr %line.words, i64 %next
  %record = load ptr, ptr %record.at
  %found = call i1 @matches(ptr %state, ptr %record, ptr %args, i64 %n, ptr %scope, ptr %printed,
                            ptr %arrays, ptr %numbers)
  br i1 %found, label %hold.begin, label %other
other:
  br label %test

hold.begin:                                       ; before anything may run Python code
  %owner = call ptr @word(ptr %record, i64 $OWNER)
  call void @hold(ptr %state, ptr %owner)
  br label %hold.test
hold.test:
  %h = phi i64 [ 0, %hold.begin ], [ %h.next, %hold.more ]
  %h.over = icmp sge i64 %h, %n
  br i1 %h.over, label %answer, label %hold.look
hold.look:
  %h.at = getelementptr ptr, ptr %arrays, i64 %h
  %h.array = load ptr, ptr %h.at
  %h.none = icmp eq ptr %h.array, null
  br i1 %h.none, label %hold.more, label %hold.one
hold.one:
  call void @hold(ptr %state, ptr %h.array)
  br label %hold.more
hold.more:
  %h.next = add i64 %h, 1
  br label %hold.test

answer:
  %result = call ptr @answer(ptr %state, ptr %record, ptr %arrays, ptr %numbers,
                            i1 false)
  br label %drop.test
drop.test:
  %d = phi i64 [ 0, %answer ], [ %d.next, %drop.more ]
  %d.over = icmp sge i64 %d, %n
  br i1 %d.over, label %done, label %drop.look
drop.look:
  %d.at = getelementptr ptr, ptr %arrays, i64 %d
  %d.array = load ptr, ptr %d.at
  %d.none = icmp eq ptr %d.array, null
  br i1 %d.none, label %drop.more, label %drop.one
drop.one:
  call void @drop(ptr %state, ptr %d.array)
  br label %drop.more
drop.more:
  %d.next = add i64 %d, 1
  br label %drop.test
done:
  call void @drop(ptr %state, ptr %owner)
  ret ptr %result

slow:
  %slow.result = call ptr @in_python(ptr %state, ptr %self, ptr %args, i64 %n, ptr %keywords)
  ret ptr %slow.result
fail:
  ret ptr null
}

; The Python function, with `self` in front of the arguments.
define internal ptr @in_python(ptr %state, ptr %self, ptr %args, i64 %n, ptr %keywords) noinline {
entry:
  %named = icmp ne ptr %keywords, null
  br i1 %named, label %measure, label %room
measure:
  %size.at = call ptr @word(ptr %state, i64 $TUPLE_SIZE)
  %many = call i64 %size.at(ptr %keywords)
  br label %room
room:
  %extra = phi i64 [ 0, %entry ], [ %many, %measure ]
  %all = add i64 %n, %extra
  %with.self = add i64 %all, 1
  %bytes = shl i64 %with.self, 3
  %malloc = call ptr @word(ptr %state, i64 $MALLOC)
  %given = call ptr %malloc(i64 %bytes)
  %no.memory = icmp eq ptr %given, null
  br i1 %no.memory, label %refuse, label %begin
begin:
  store ptr %self, ptr %given
  br label %test
test:
  %k = phi i64 [ 0, %begin ], [ %next, %copy ]
  %over = icmp sge i64 %k, %all
  br i1 %over, label %go, label %copy
copy:
  %next = add i64 %k, 1
  %from = getelementptr ptr, ptr %args, i64 %k
  %to = getelementptr ptr, ptr %given, i64 %next
  %x = load ptr, ptr %from
  store ptr %x, ptr %to
  br label %test
go:
  %places = add i64 %n, 1
  %function = call ptr @word(ptr %state, i64 $FALLBACK)
  %vectorcall = call ptr @word(ptr %state, i64 $VECTORCALL)
  %result = call ptr %vectorcall(ptr %function, ptr %given, i64 %places, ptr %keywords)
  %free = call ptr @word(ptr %state, i64 $FREE)
  call void %free(ptr %given)
  ret ptr %result
refuse:
  %no_memory = call ptr @word(ptr %state, i64 $NO_MEMORY)
  %null = call ptr %no_memory()
  ret ptr %null
}
"""

AT: Final = """
; at(address of a record, owners or addresses): a call whose inputs are told by their addresses, as
; numbers or as objects with a method `data_ptr`.
define ptr @smelt_at(ptr %self, ptr %args, i64 %n) {
entry:
  %overflow = alloca i32
  %state = load ptr, ptr @state
  %as.long = call ptr @word(ptr %state, i64 $AS_LONG)
  %first = load ptr, ptr %args
  %record.int = call i64 %as.long(ptr %first, ptr %overflow)
  %record = inttoptr i64 %record.int to ptr
  %given = call ptr @word(ptr %args, i64 8)
  %count = call i64 @number(ptr %record, i64 $COUNT)
  %size = call ptr @word(ptr %state, i64 $LENGTH)
  %many = call i64 %size(ptr %given)
  %as.many = icmp eq i64 %many, %count
  br i1 %as.many, label %begin, label %fail
begin:
  %room = add i64 %count, 1
  %arrays = alloca ptr, i64 %room, align 16
  %numbers = alloca i64, i64 %room, align 16
  %item = call ptr @word(ptr %state, i64 $ITEM)
  %int = call ptr @word(ptr %state, i64 $INT)
  br label %test
test:
  %k = phi i64 [ 0, %begin ], [ %next, %put ]
  %over = icmp sge i64 %k, %count
  br i1 %over, label %run, label %look
look:
  %next = add i64 %k, 1
  %array.at = getelementptr ptr, ptr %arrays, i64 %k
  store ptr null, ptr %array.at
  %x = call ptr %item(ptr %given, i64 %k)
  %none = icmp eq ptr %x, null
  br i1 %none, label %fail, label %kind
kind:
  %type = call ptr @word(ptr %x, i64 $KIND)
  %is.int = icmp eq ptr %type, %int
  br i1 %is.int, label %read, label %ask
ask:
  %ask.it = call ptr @word(ptr %state, i64 $METHOD)
  %name = call ptr @word(ptr %state, i64 $DATA_PTR)
  store ptr %x, ptr %array.at
  %answer = call ptr %ask.it(ptr %name, ptr %array.at, i64 1, ptr null)
  store ptr null, ptr %array.at
  call void @drop(ptr %state, ptr %x)
  %silent = icmp eq ptr %answer, null
  br i1 %silent, label %fail, label %verify
verify:
  %answer.type = call ptr @word(ptr %answer, i64 $KIND)
  %sound = icmp eq ptr %answer.type, %int
  br i1 %sound, label %read, label %refuse
refuse:
  call void @drop(ptr %state, ptr %answer)
  ret ptr null
read:
  %told = phi ptr [ %x, %kind ], [ %answer, %verify ]
  %address = call i64 %as.long(ptr %told, ptr %overflow)
  call void @drop(ptr %state, ptr %told)
  br label %put
put:
  %number.at = getelementptr i64, ptr %numbers, i64 %k
  store i64 %address, ptr %number.at
  br label %test
run:
  %owner = call ptr @word(ptr %record, i64 $OWNER)
  call void @hold(ptr %state, ptr %owner)
  %result = call ptr @answer(ptr %state, ptr %record, ptr %arrays, ptr %numbers, i1 true)
  call void @drop(ptr %state, ptr %owner)
  ret ptr %result
fail:
  ret ptr null
}
"""
