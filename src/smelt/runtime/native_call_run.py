"""LLVM IR of a recorded call, part 2: allocate memory and results, run kernels.

`native_call.ir` substitutes a number for each `$NAME`; `smelt.runtime.native_call` explains.

>>> "@smelt_result" in MEMORY
True
"""

from __future__ import annotations

from typing import Final

MEMORY: Final = """
; Return a block of memory and its address: a free one of the ring, or a fresh one. The caller owns
; a reference. Null with an exception set if there is no memory.
define internal ptr @block(ptr %state, ptr %row, ptr %address.at) {
entry:
  %ring = call ptr @word(ptr %row, i64 32)
  %no.ring = icmp eq ptr %ring, null
  br i1 %no.ring, label %fresh, label %test
test:
  %k = phi i64 [ 0, %entry ], [ %next, %more ]
  %over = icmp sge i64 %k, $RING_BLOCKS
  br i1 %over, label %fresh, label %look
look:
  %pair.offset = shl i64 %k, 4
  %pair.base = getelementptr i8, ptr %ring, i64 8
  %pair = getelementptr i8, ptr %pair.base, i64 %pair.offset
  %block = load ptr, ptr %pair
  %empty = icmp eq ptr %block, null
  br i1 %empty, label %fresh, label %count
count:
  %references.at = getelementptr i8, ptr %block, i64 $REFERENCES
  %references = load i32, ptr %references.at
  %free = icmp eq i32 %references, 1
  br i1 %free, label %take, label %more
more:
  %next = add i64 %k, 1
  br label %test
take:
  %known.at = getelementptr i8, ptr %pair, i64 8
  %known = load i64, ptr %known.at
  store i64 %known, ptr %address.at
  call void @hold(ptr %state, ptr %block)
  ret ptr %block

fresh:                                            ; the allocator returns an array on a new block
  %call = call ptr @word(ptr %state, i64 $CALL)
  %maker = call ptr @word(ptr %row, i64 40)
  %made = call ptr %call(ptr %maker)
  %failed = icmp eq ptr %made, null
  br i1 %failed, label %fail, label %open
open:
  %base = call ptr @word(ptr %made, i64 $ND_BASE)
  %address = call i64 @number(ptr %made, i64 $ND_DATA)
  store i64 %address, ptr %address.at
  call void @hold(ptr %state, ptr %base)
  call void @drop(ptr %state, ptr %made)
  br i1 %no.ring, label %give, label %keep
keep:                                             ; replace the oldest entry
  %turn = load i64, ptr %ring
  %turn.next = add i64 %turn, 1
  %turn.mod = urem i64 %turn.next, $RING_BLOCKS
  store i64 %turn.mod, ptr %ring
  %place.offset = shl i64 %turn, 4
  %place.base = getelementptr i8, ptr %ring, i64 8
  %place = getelementptr i8, ptr %place.base, i64 %place.offset
  %place.address = getelementptr i8, ptr %place, i64 8
  %old = load ptr, ptr %place
  call void @hold(ptr %state, ptr %base)
  store ptr %base, ptr %place
  store i64 %address, ptr %place.address
  %none = icmp eq ptr %old, null
  br i1 %none, label %give, label %leave
leave:
  call void @drop(ptr %state, ptr %old)
  br label %give
give:
  ret ptr %base
fail:
  ret ptr null
}

; Return an uninitialised array and its address. Null with an exception set on failure.
define ptr @smelt_array(ptr %row, ptr %address.at) {
entry:
  %state = load ptr, ptr @state
  %block = call ptr @block(ptr %state, ptr %row, ptr %address.at)
  %no.block = icmp eq ptr %block, null
  br i1 %no.block, label %fail, label %view
view:
  %descr = call ptr @word(ptr %row, i64 0)
  call void @hold(ptr %state, ptr %descr)
  %rank.wide = call i64 @number(ptr %row, i64 8)
  %rank = trunc i64 %rank.wide to i32
  %dims = call ptr @word(ptr %row, i64 16)
  %strides = call ptr @word(ptr %row, i64 48)
  %address = load ptr, ptr %address.at
  %new = call ptr @word(ptr %state, i64 $NEW_ARRAY)
  %ndarray = call ptr @word(ptr %state, i64 $NDARRAY)
  %array = call ptr %new(ptr %ndarray, ptr %descr, i32 %rank, ptr %dims, ptr %strides,
                         ptr %address, i32 $CARRAY, ptr null)
  %no.array = icmp eq ptr %array, null
  br i1 %no.array, label %fail.block, label %base
base:                                             ; takes the reference, even on failure
  %set = call ptr @word(ptr %state, i64 $SET_BASE)
  %status = call i32 %set(ptr %array, ptr %block)
  %refused = icmp slt i32 %status, 0
  br i1 %refused, label %fail.array, label %done
done:
  ret ptr %array
fail.array:
  call void @drop(ptr %state, ptr %array)
  ret ptr null
fail.block:
  call void @drop(ptr %state, ptr %block)
  ret ptr null
fail:
  ret ptr null
}

; Return an uninitialised Smelt array and its address.
define ptr @smelt_result(ptr %row, ptr %address.at) {
entry:
  %state = load ptr, ptr @state
  %array = call ptr @smelt_array(ptr %row, ptr %address.at)
  %no.array = icmp eq ptr %array, null
  br i1 %no.array, label %fail, label %wrap
wrap:
  %alloc = call ptr @word(ptr %state, i64 $ALLOC)
  %value.type = call ptr @word(ptr %state, i64 $VALUE)
  %value = call ptr %alloc(ptr %value.type, i64 0)
  %no.value = icmp eq ptr %value, null
  br i1 %no.value, label %fail.array, label %fill
fill:
  call void @put(ptr %state, i64 $DATA_AT, ptr %value, ptr %array)
  %type = call ptr @word(ptr %row, i64 24)
  call void @share(ptr %state, i64 $TYPE_AT, ptr %value, ptr %type)
  %source = call ptr @word(ptr %state, i64 $SOURCE)
  call void @share(ptr %state, i64 $OP_AT, ptr %value, ptr %source)
  %nothing = call ptr @word(ptr %state, i64 $EMPTY)
  call void @share(ptr %state, i64 $INPUTS_AT, ptr %value, ptr %nothing)
  %none = call ptr @word(ptr %state, i64 $NONE)
  call void @share(ptr %state, i64 $ORIGIN_AT, ptr %value, ptr %none)
  call void @share(ptr %state, i64 $SCOPE_AT, ptr %value, ptr %none)
  %ours.type = call ptr @word(ptr %state, i64 $ARRAY)
  %ours = call ptr %alloc(ptr %ours.type, i64 0)
  %no.ours = icmp eq ptr %ours, null
  br i1 %no.ours, label %fail.value, label %done
done:
  call void @put(ptr %state, i64 $NODE_AT, ptr %ours, ptr %value)
  ret ptr %ours
fail.value:
  call void @drop(ptr %state, ptr %value)
  ret ptr null
fail.array:
  call void @drop(ptr %state, ptr %array)
  ret ptr null
fail:
  ret ptr null
}
"""

RUN: Final = """
; Copy the frame, write the addresses into it and run the kernels. False on failure.
define internal i1 @perform(ptr %state, ptr %record, ptr %places, ptr %frame, i64 %arena) {
entry:
  %words = call i64 @number(ptr %record, i64 $FRAME_WORDS)
  %template = call ptr @word(ptr %record, i64 $FRAME)
  br label %copy.test
copy.test:
  %w = phi i64 [ 0, %entry ], [ %w.next, %copy ]
  %copied = icmp sge i64 %w, %words
  br i1 %copied, label %patch, label %copy
copy:
  %from = getelementptr i64, ptr %template, i64 %w
  %to = getelementptr i64, ptr %frame, i64 %w
  %content = load i64, ptr %from
  store i64 %content, ptr %to
  %w.next = add i64 %w, 1
  br label %copy.test

patch:
  %patches = call ptr @word(ptr %record, i64 $PATCHES)
  %patch.count = call i64 @number(ptr %record, i64 $PATCH_COUNT)
  br label %patch.test
patch.test:
  %p = phi i64 [ 0, %patch ], [ %p.next, %patch.one ]
  %patched = icmp sge i64 %p, %patch.count
  br i1 %patched, label %arena.begin, label %patch.one
patch.one:
  %p.offset = mul i64 %p, 24
  %p.row = getelementptr i8, ptr %patches, i64 %p.offset
  %p.word = load i64, ptr %p.row
  %p.place = call i64 @number(ptr %p.row, i64 8)
  %p.distance = call i64 @number(ptr %p.row, i64 16)
  %p.from = getelementptr i64, ptr %places, i64 %p.place
  %p.to = getelementptr i64, ptr %frame, i64 %p.word
  %p.base = load i64, ptr %p.from
  %p.address = add i64 %p.base, %p.distance
  store i64 %p.address, ptr %p.to
  %p.next = add i64 %p, 1
  br label %patch.test

arena.begin:
  %arena.patches = call ptr @word(ptr %record, i64 $ARENA_PATCHES)
  %arena.count = call i64 @number(ptr %record, i64 $ARENA_COUNT)
  br label %arena.test
arena.test:
  %a = phi i64 [ 0, %arena.begin ], [ %a.next, %arena.one ]
  %a.over = icmp sge i64 %a, %arena.count
  br i1 %a.over, label %start, label %arena.one
arena.one:
  %a.offset = shl i64 %a, 4
  %a.row = getelementptr i8, ptr %arena.patches, i64 %a.offset
  %a.word = load i64, ptr %a.row
  %a.distance = call i64 @number(ptr %a.row, i64 8)
  %a.to = getelementptr i64, ptr %frame, i64 %a.word
  %a.address = add i64 %arena, %a.distance
  store i64 %a.address, ptr %a.to
  %a.next = add i64 %a, 1
  br label %arena.test

start:
  %runner = call ptr @word(ptr %record, i64 $RUNNER)
  %here = icmp eq ptr %runner, null
  br i1 %here, label %chunks.begin, label %elsewhere
elsewhere:                                        ; by the pool, which releases the GIL
  %from.long = call ptr @word(ptr %state, i64 $FROM_LONG)
  %frame.int = ptrtoint ptr %frame to i64
  %told = call ptr %from.long(i64 %frame.int)
  %no.number = icmp eq ptr %told, null
  br i1 %no.number, label %failed, label %hand.over
hand.over:
  %call.one = call ptr @word(ptr %state, i64 $CALL_ONE)
  %answer = call ptr %call.one(ptr %runner, ptr %told)
  call void @drop(ptr %state, ptr %told)
  %raised = icmp eq ptr %answer, null
  br i1 %raised, label %failed, label %ran
ran:
  call void @drop(ptr %state, ptr %answer)
  ret i1 true
chunks.begin:
  %chunks = call ptr @word(ptr %record, i64 $CHUNKS)
  %chunk.count = call i64 @number(ptr %record, i64 $CHUNK_COUNT)
  %scratch.given = call i64 @number(ptr %record, i64 $SCRATCH)
  %unlocked = call i64 @number(ptr %record, i64 $UNLOCKED)
  %locked = icmp eq i64 %unlocked, 0
  br i1 %locked, label %chunk.test, label %let.go
let.go:                                           ; touch no Python object until it is retaken
  %scratch.own = add i64 %arena, %scratch.given
  %save = call ptr @word(ptr %state, i64 $LET_GO)
  %thread.own = call ptr %save()
  br label %chunk.test
chunk.test:
  %c = phi i64 [ 0, %chunks.begin ], [ 0, %let.go ], [ %c.next, %chunk ]
  %thread = phi ptr [ null, %chunks.begin ], [ %thread.own, %let.go ], [ %thread, %chunk ]
  %scratch.int = phi i64 [ %scratch.given, %chunks.begin ], [ %scratch.own, %let.go ],
                         [ %scratch.int, %chunk ]
  %c.over = icmp sge i64 %c, %chunk.count
  br i1 %c.over, label %finished, label %chunk
chunk:
  %c.offset = shl i64 %c, 5
  %row = getelementptr i8, ptr %chunks, i64 %c.offset
  %kernel = load ptr, ptr %row
  %offset = call i64 @number(ptr %row, i64 8)
  %begin = call i64 @number(ptr %row, i64 16)
  %end = call i64 @number(ptr %row, i64 24)
  %own = getelementptr i8, ptr %frame, i64 %offset
  %scratch = inttoptr i64 %scratch.int to ptr
  call void %kernel(ptr %own, i64 %begin, i64 %end, ptr %scratch)
  %c.next = add i64 %c, 1
  br label %chunk.test
finished:
  br i1 %locked, label %well, label %take.back
take.back:
  %restore = call ptr @word(ptr %state, i64 $TAKE_BACK)
  call void %restore(ptr %thread)
  br label %well
well:
  ret i1 true
failed:
  ret i1 false
}
"""

BUILD: Final = """
; Return the nest of tuples, lists and dicts that holds the results. `objects` is a tuple of the
; results; the containers are stored after them, inner ones first, so that it owns them all.
define internal ptr @build_nests(ptr %state, ptr %record, ptr %objects) {
entry:
  %rows = call ptr @word(ptr %record, i64 $RESULT_NESTS)
  %count = call i64 @number(ptr %record, i64 $RESULT_NEST_COUNT)
  %first = call i64 @number(ptr %record, i64 $RESULT_COUNT)
  %none = call ptr @word(ptr %state, i64 $NONE)
  %get = call ptr @word(ptr %state, i64 $TUPLE_GET)
  %tuple.set = call ptr @word(ptr %state, i64 $TUPLE_SET)
  %list.set = call ptr @word(ptr %state, i64 $LIST_SET)
  %dict.set = call ptr @word(ptr %state, i64 $DICT_SET)
  br label %test
test:
  %k = phi i64 [ 0, %entry ], [ %next, %items.test ]
  %last = phi ptr [ null, %entry ], [ %nest, %items.test ]
  %over = icmp sge i64 %k, %count
  br i1 %over, label %done, label %make
make:
  %next = add i64 %k, 1
  %row.offset = mul i64 %k, $RESULT_NEST_BYTES
  %row = getelementptr i8, ptr %rows, i64 %row.offset
  %kind = call i64 @number(ptr %row, i64 0)
  %many = call i64 @number(ptr %row, i64 8)
  %items = call ptr @word(ptr %row, i64 16)
  %keys = call ptr @word(ptr %row, i64 24)
  %is.dict = icmp eq i64 %kind, $NEST_DICT
  %is.list = icmp eq i64 %kind, $NEST_LIST
  br i1 %is.dict, label %make.dict, label %make.sequence
make.dict:
  %dict.new = call ptr @word(ptr %state, i64 $DICT_NEW)
  %dict = call ptr %dict.new()
  br label %keep
make.sequence:
  %list.new = call ptr @word(ptr %state, i64 $LIST_NEW)
  %tuple.new = call ptr @word(ptr %state, i64 $TUPLE_NEW)
  %new = select i1 %is.list, ptr %list.new, ptr %tuple.new
  %sequence = call ptr %new(i64 %many)
  br label %keep
keep:
  %nest = phi ptr [ %dict, %make.dict ], [ %sequence, %make.sequence ]
  %failed = icmp eq ptr %nest, null
  br i1 %failed, label %fail, label %own
own:
  %index = add i64 %first, %k
  %kept = call i32 %tuple.set(ptr %objects, i64 %index, ptr %nest)
  %unkept = icmp slt i32 %kept, 0
  %set = select i1 %is.list, ptr %list.set, ptr %tuple.set
  br i1 %unkept, label %fail, label %items.test
items.test:
  %i = phi i64 [ 0, %own ], [ %i.next, %put.key ], [ %i.next, %put.item ]
  %i.over = icmp sge i64 %i, %many
  br i1 %i.over, label %test, label %item
item:
  %i.next = add i64 %i, 1
  %i.at = getelementptr i64, ptr %items, i64 %i
  %place = load i64, ptr %i.at
  %is.none = icmp slt i64 %place, 0
  br i1 %is.none, label %put, label %fetch
fetch:
  %object = call ptr %get(ptr %objects, i64 %place)
  br label %put
put:
  %x = phi ptr [ %none, %item ], [ %object, %fetch ]
  br i1 %is.dict, label %put.key, label %put.item
put.key:
  %key.at = getelementptr ptr, ptr %keys, i64 %i
  %key = load ptr, ptr %key.at
  %key.status = call i32 %dict.set(ptr %nest, ptr %key, ptr %x)
  %key.failed = icmp slt i32 %key.status, 0
  br i1 %key.failed, label %fail, label %items.test
put.item:                                         ; takes the reference, even on failure
  call void @hold(ptr %state, ptr %x)
  %item.status = call i32 %set(ptr %nest, i64 %i, ptr %x)
  %item.failed = icmp slt i32 %item.status, 0
  br i1 %item.failed, label %fail, label %items.test
done:
  call void @hold(ptr %state, ptr %last)
  ret ptr %last
fail:
  ret ptr null
}
"""

ANSWER: Final = """
; Return a Smelt array, or what the record's wrapper makes of a NumPy array.
define internal ptr @made(ptr %state, ptr %record, ptr %row, ptr %address.at) {
entry:
  %wrapper = call ptr @word(ptr %record, i64 $WRAP)
  %ours = icmp eq ptr %wrapper, null
  br i1 %ours, label %own, label %array
own:
  %result = call ptr @smelt_result(ptr %row, ptr %address.at)
  ret ptr %result
array:
  %bare = call ptr @smelt_array(ptr %row, ptr %address.at)
  %none = icmp eq ptr %bare, null
  br i1 %none, label %fail, label %wrap
wrap:
  %call.one = call ptr @word(ptr %state, i64 $CALL_ONE)
  %wrapped = call ptr %call.one(ptr %wrapper, ptr %bare)
  call void @drop(ptr %state, ptr %bare)
  ret ptr %wrapped
fail:
  ret ptr null
}

; Return the results of a call: a new reference, or null with an exception set. The room holds the
; arguments' arrays, then numbers: for an argument without an array the number itself, or, with
; `told`, its address. All addresses and the kernels' frame follow. `given` is what `out=` names,
; which is the result, or null.
define internal ptr @answer(ptr %state, ptr %record, ptr %arrays, i1 %told, ptr %given) {
entry:
  %arena.at = alloca i64
  store i64 0, ptr %arena.at
  %count = call i64 @number(ptr %record, i64 $COUNT)
  %captured.count = call i64 @number(ptr %record, i64 $CAPTURED_COUNT)
  %result.count = call i64 @number(ptr %record, i64 $RESULT_COUNT)
  %rows = call ptr @word(ptr %record, i64 $RESULTS)
  %first = add i64 %count, %captured.count
  %flag.place = add i64 %first, %result.count
  %numbers = getelementptr i64, ptr %arrays, i64 %count
  %places = getelementptr i64, ptr %numbers, i64 %count
  %frame.at = call i64 @number(ptr %record, i64 $FRAME_AT)
  %frame = getelementptr i8, ptr %arrays, i64 %frame.at
  %out.at = alloca ptr
  store ptr %given, ptr %out.at
  %flag.at = alloca [64 x i8], align 64
  store i8 0, ptr %flag.at
  %flag.own = ptrtoint ptr %flag.at to i64
  %flag.to = getelementptr i64, ptr %places, i64 %flag.place
  store i64 %flag.own, ptr %flag.to
  %single = call i64 @number(ptr %record, i64 $SINGLE)
  %several = icmp eq i64 %single, 0
  %is.given = icmp ne ptr %given, null
  br i1 %is.given, label %given.hold, label %kind
given.hold:
  call void @hold(ptr %state, ptr %given)
  br label %results.test
kind:
  br i1 %several, label %tuple.make, label %results.test
tuple.make:
  %tuple.new = call ptr @word(ptr %state, i64 $TUPLE_NEW)
  %nest.count = call i64 @number(ptr %record, i64 $RESULT_NEST_COUNT)
  %object.count = add i64 %result.count, %nest.count
  %fresh = call ptr %tuple.new(i64 %object.count)
  store ptr %fresh, ptr %out.at
  %no.tuple = icmp eq ptr %fresh, null
  br i1 %no.tuple, label %fail, label %results.test
results.test:
  %r = phi i64 [ 0, %given.hold ], [ 0, %kind ], [ 0, %tuple.make ], [ %r.next, %result.next ]
  %r.over = icmp sge i64 %r, %result.count
  br i1 %r.over, label %arena, label %result
result:
  %r.offset = mul i64 %r, $RESULT_BYTES
  %row = getelementptr i8, ptr %rows, i64 %r.offset
  %r.place = add i64 %first, %r
  %address.at = getelementptr i64, ptr %places, i64 %r.place
  %made = call ptr @made(ptr %state, ptr %record, ptr %row, ptr %address.at)
  %no.result = icmp eq ptr %made, null
  br i1 %no.result, label %fail, label %result.where
result.where:
  br i1 %several, label %result.put, label %result.only
result.only:
  store ptr %made, ptr %out.at
  br label %result.next
result.put:
  %tuple = load ptr, ptr %out.at
  %tuple.set = call ptr @word(ptr %state, i64 $TUPLE_SET)
  %status = call i32 %tuple.set(ptr %tuple, i64 %r, ptr %made)
  %unset = icmp slt i32 %status, 0
  br i1 %unset, label %fail, label %result.next
result.next:
  %r.next = add i64 %r, 1
  br label %results.test

arena:
  %arena.row = call ptr @word(ptr %record, i64 $ARENA)
  %no.arena = icmp eq ptr %arena.row, null
  br i1 %no.arena, label %inputs, label %arena.take
arena.take:
  %taken = call ptr @block(ptr %state, ptr %arena.row, ptr %arena.at)
  %no.block = icmp eq ptr %taken, null
  br i1 %no.block, label %fail, label %inputs

inputs:                                           ; no Python code may run from here to the kernels
  %arena.block = phi ptr [ null, %arena ], [ %taken, %arena.take ]
  br label %inputs.test
inputs.test:
  %k = phi i64 [ 0, %inputs ], [ %k.next, %input.put ]
  %k.over = icmp sge i64 %k, %count
  br i1 %k.over, label %captured, label %input
input:
  %array.at = getelementptr ptr, ptr %arrays, i64 %k
  %array = load ptr, ptr %array.at
  %is.number = icmp eq ptr %array, null
  br i1 %is.number, label %input.number, label %input.array
input.number:
  %number.at = getelementptr i64, ptr %numbers, i64 %k
  %number.own = ptrtoint ptr %number.at to i64
  %number = load i64, ptr %number.at
  %number.address = select i1 %told, i64 %number, i64 %number.own
  br label %input.put
input.array:
  %array.address = call i64 @number(ptr %array, i64 $ND_DATA)
  br label %input.put
input.put:
  %k.address = phi i64 [ %number.address, %input.number ], [ %array.address, %input.array ]
  %k.place = getelementptr i64, ptr %places, i64 %k
  store i64 %k.address, ptr %k.place
  %k.next = add i64 %k, 1
  br label %inputs.test
captured:
  %captured.first = call ptr @word(ptr %record, i64 $CAPTURED)
  br label %captured.test
captured.test:
  %c = phi i64 [ 0, %captured ], [ %c.next, %captured.put ]
  %c.over = icmp sge i64 %c, %captured.count
  br i1 %c.over, label %run, label %captured.put
captured.put:
  %c.offset = mul i64 %c, $CAPTURED_BYTES
  %c.row = getelementptr i8, ptr %captured.first, i64 %c.offset
  %c.array = call ptr @word(ptr %c.row, i64 8)
  %c.address = call i64 @number(ptr %c.array, i64 $ND_DATA)
  %c.index = add i64 %count, %c
  %c.place = getelementptr i64, ptr %places, i64 %c.index
  store i64 %c.address, ptr %c.place
  %c.next = add i64 %c, 1
  br label %captured.test

run:
  %arena.address = load i64, ptr %arena.at
  %well = call i1 @perform(ptr %state, ptr %record, ptr %places, ptr %frame,
                        i64 %arena.address)
  %kept = icmp ne ptr %arena.block, null
  br i1 %kept, label %arena.drop, label %after
arena.drop:
  call void @drop(ptr %state, ptr %arena.block)
  br label %after
after:
  br i1 %well, label %ask, label %fail
ask:
  %flag = load i8, ptr %flag.at
  %fine = icmp eq i8 %flag, 0
  br i1 %fine, label %pack, label %refuse
refuse:
  %call = call ptr @word(ptr %state, i64 $CALL)
  %refusal = call ptr @word(ptr %record, i64 $REFUSE)
  %never = call ptr %call(ptr %refusal)
  br label %fail
pack:
  %out = load ptr, ptr %out.at
  %nests = call i64 @number(ptr %record, i64 $RESULT_NEST_COUNT)
  %nested = icmp ne i64 %nests, 0
  br i1 %nested, label %build, label %pack.here
build:
  %built = call ptr @build_nests(ptr %state, ptr %record, ptr %out)
  call void @drop(ptr %state, ptr %out)
  ret ptr %built
pack.here:
  %packer = call ptr @word(ptr %record, i64 $PACK)
  %as.is = icmp eq ptr %packer, null
  br i1 %as.is, label %whole, label %packed
whole:
  ret ptr %out
packed:
  %call.one = call ptr @word(ptr %state, i64 $CALL_ONE)
  %nest = call ptr %call.one(ptr %packer, ptr %out)
  call void @drop(ptr %state, ptr %out)
  ret ptr %nest
fail:
  %half = load ptr, ptr %out.at
  %nothing = icmp eq ptr %half, null
  br i1 %nothing, label %gone, label %half.drop
half.drop:
  call void @drop(ptr %state, ptr %half)
  br label %gone
gone:
  ret ptr null
}
"""
