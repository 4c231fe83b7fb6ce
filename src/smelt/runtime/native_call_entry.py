"""LLVM IR of a recorded call, part 3: the functions that Python calls.

`native_call.ir` substitutes a number for each `$NAME`; `smelt.runtime.native_call` explains.

>>> "@smelt_call" in CALL
True
"""

from __future__ import annotations

from typing import Final

_ROOM: Final = """
  %room.bytes = call i64 @number(ptr %record, i64 $ROOM)
  %room.small = icmp ule i64 %room.bytes, $STACK_BYTES
  br i1 %room.small, label %room.stack, label %room.heap
room.stack:
  %stack = alloca i8, i64 %room.bytes, align 64
  br label %room.ready
room.heap:
  %room.malloc = call ptr @word(ptr %state, i64 $MALLOC)
  %room.padded = add i64 %room.bytes, 64
  %heap.room = call ptr %room.malloc(i64 %room.padded)
  %room.none = icmp eq ptr %heap.room, null
  br i1 %room.none, label %room.refuse, label %room.align
room.align:
  %room.first = ptrtoint ptr %heap.room to i64
  %room.over = add i64 %room.first, 63
  %room.aligned = and i64 %room.over, -64
  %heap.aligned = inttoptr i64 %room.aligned to ptr
  br label %room.ready
room.ready:
  %heap = phi ptr [ null, %room.stack ], [ %heap.room, %room.align ]
  %room = phi ptr [ %stack, %room.stack ], [ %heap.aligned, %room.align ]
"""
"""Take the memory of one call: on the stack if it is small, else from the heap (`%heap`)."""

CALL: Final = (
    """
; Entry of a call from CPython (METH_FASTCALL | METH_KEYWORDS).
define ptr @smelt_call(ptr %self, ptr %args, i64 %n, ptr %keywords) {
entry:
  %settings.at = alloca ptr
  %result.at = alloca ptr
  %state = load ptr, ptr @state
  %local = call ptr @word(ptr %state, i64 $LOCAL)
  %name = call ptr @word(ptr %state, i64 $FOLLOWING)
  %attribute = call ptr @word(ptr %state, i64 $GET_ATTRIBUTE)
  %taping = call ptr %attribute(ptr %local, ptr %name)
  %unknown = icmp eq ptr %taping, null
  br i1 %unknown, label %fail, label %told
told:
  call void @drop(ptr %state, ptr %taping)
  %zero = call ptr @word(ptr %state, i64 $ZERO)
  %open = icmp eq ptr %taping, %zero
  %line = call ptr @slot(ptr %state, i64 $LINE_AT, ptr %self)
  %has.line = icmp ne ptr %line, null
  %both = and i1 %open, %has.line
  br i1 %both, label %known, label %slow
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
compare:                                          ; the context also references the settings
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
  %possible = call i1 @settings_fit(ptr %state, ptr %record, i64 %n, ptr %keywords, ptr %scope,
                                    ptr %printed)
  br i1 %possible, label %try, label %other
try:
  %matched = call i1 @attempt(ptr %state, ptr %record, ptr %args, i64 %n, ptr %result.at)
  br i1 %matched, label %done, label %other
other:
  br label %test
done:
  %result = load ptr, ptr %result.at
  ret ptr %result

slow:
  %slow.result = call ptr @in_python(ptr %state, ptr %self, ptr %args, i64 %n, ptr %keywords)
  ret ptr %slow.result
fail:
  ret ptr null
}

; Run the call if the record matches its arguments; stores the result, null with an exception set.
; Its memory has room for any number of arguments and is gone before a call is left to Python.
define internal i1 @attempt(ptr %state, ptr %record, ptr %args, i64 %n, ptr %result.at) noinline {
entry:
  store ptr null, ptr %result.at"""
    + _ROOM
    + """
  %leaves = call i64 @number(ptr %record, i64 $COUNT)
  %arrays = getelementptr i8, ptr %room, i64 0
  %alike = call i1 @matches(ptr %state, ptr %record, ptr %args, i64 %n, ptr %room)
  br i1 %alike, label %outs, label %leave
outs:
  %writable = call i1 @outs_fit(ptr %state, ptr %record, ptr %arrays)
  br i1 %writable, label %hold.begin, label %leave
hold.begin:                                       ; before anything may run Python code
  %owner = call ptr @word(ptr %record, i64 $OWNER)
  call void @hold(ptr %state, ptr %owner)
  br label %hold.test
hold.test:
  %h = phi i64 [ 0, %hold.begin ], [ %h.next, %hold.more ]
  %h.over = icmp sge i64 %h, %leaves
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
  %out = call ptr @out_argument(ptr %record, ptr %args)
  %result = call ptr @answer(ptr %state, ptr %record, ptr %room, i1 false, ptr %out)
  store ptr %result, ptr %result.at
  br label %drop.test
drop.test:
  %d = phi i64 [ 0, %answer ], [ %d.next, %drop.more ]
  %d.over = icmp sge i64 %d, %leaves
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
  br label %leave
leave:
  %found = phi i1 [ false, %room.ready ], [ false, %outs ], [ true, %done ]
  call void @give_room(ptr %state, ptr %heap)
  ret i1 %found
room.refuse:
  %no.memory = call ptr @word(ptr %state, i64 $NO_MEMORY)
  %null = call ptr %no.memory()
  ret i1 true
}

; Give back the memory of a call, if it is from the heap.
define internal void @give_room(ptr %state, ptr %heap) alwaysinline {
entry:
  %none = icmp eq ptr %heap, null
  br i1 %none, label %done, label %free
free:
  %function = call ptr @word(ptr %state, i64 $FREE)
  call void %function(ptr %heap)
  br label %done
done:
  ret void
}

; Call the Python function, with `self` before the arguments.
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
)

AT: Final = (
    """
; at(address of a record, inputs): a call whose inputs are given as addresses, as arrays or as
; objects with a method `data_ptr`.
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
begin:"""
    + _ROOM
    + """
  %arrays = getelementptr i8, ptr %room, i64 0
  %numbers = getelementptr i64, ptr %room, i64 %count
  %item = call ptr @word(ptr %state, i64 $ITEM)
  %int = call ptr @word(ptr %state, i64 $INT)
  br label %test
test:
  %k = phi i64 [ 0, %room.ready ], [ %next, %put ]
  %over = icmp sge i64 %k, %count
  br i1 %over, label %run, label %look
look:
  %next = add i64 %k, 1
  %array.at = getelementptr ptr, ptr %arrays, i64 %k
  store ptr null, ptr %array.at
  %x = call ptr %item(ptr %given, i64 %k)
  %none = icmp eq ptr %x, null
  br i1 %none, label %leave, label %kind
kind:
  %type = call ptr @word(ptr %x, i64 $KIND)
  %is.int = icmp eq ptr %type, %int
  br i1 %is.int, label %read, label %other
other:
  %ndarray = call ptr @word(ptr %state, i64 $NDARRAY)
  %is.array = icmp eq ptr %type, %ndarray
  br i1 %is.array, label %peek, label %ask
peek:                                             ; the caller references it
  %peeked = call i64 @number(ptr %x, i64 $ND_DATA)
  call void @drop(ptr %state, ptr %x)
  br label %put
ask:
  %ask.it = call ptr @word(ptr %state, i64 $METHOD)
  %name = call ptr @word(ptr %state, i64 $DATA_PTR)
  store ptr %x, ptr %array.at
  %answer = call ptr %ask.it(ptr %name, ptr %array.at, i64 1, ptr null)
  store ptr null, ptr %array.at
  call void @drop(ptr %state, ptr %x)
  %silent = icmp eq ptr %answer, null
  br i1 %silent, label %leave, label %verify
verify:
  %answer.type = call ptr @word(ptr %answer, i64 $KIND)
  %sound = icmp eq ptr %answer.type, %int
  br i1 %sound, label %read, label %refuse
refuse:
  call void @drop(ptr %state, ptr %answer)
  br label %leave
read:
  %told = phi ptr [ %x, %kind ], [ %answer, %verify ]
  %long = call i64 %as.long(ptr %told, ptr %overflow)
  call void @drop(ptr %state, ptr %told)
  br label %put
put:
  %address = phi i64 [ %long, %read ], [ %peeked, %peek ]
  %number.at = getelementptr i64, ptr %numbers, i64 %k
  store i64 %address, ptr %number.at
  br label %test
run:
  %owner = call ptr @word(ptr %record, i64 $OWNER)
  call void @hold(ptr %state, ptr %owner)
  %result = call ptr @answer(ptr %state, ptr %record, ptr %room, i1 true, ptr null)
  call void @drop(ptr %state, ptr %owner)
  br label %leave
leave:
  %outcome = phi ptr [ null, %look ], [ null, %ask ], [ null, %refuse ], [ %result, %run ]
  call void @give_room(ptr %state, ptr %heap)
  ret ptr %outcome
room.refuse:
  %no.memory = call ptr @word(ptr %state, i64 $NO_MEMORY)
  %null = call ptr %no.memory()
  ret ptr null
fail:
  ret ptr null
}
"""
)
