%struct.pool = type { i64, [120 x i8], i32, i32, [120 x i8], ptr, ptr, i32, i32, [104 x i8], i32, i32, [120 x i8], i64, [120 x i8], i32, i32, i64, i64, i64, i64, ptr, i64, i64, i64, i64, ptr, ptr, ptr, ptr, ptr, ptr, ptr, ptr, ptr, ptr, ptr, ptr, ptr, ptr, ptr, ptr, i64, ptr, ptr, ptr, i64, ptr, ptr, ptr, ptr, i64, [96 x i8], [128 x i8], [128 x i8], %struct.run, [8 x i8], [64 x %struct.slot] }
%struct.run = type { i64, i64, ptr, ptr, i64, i64, i64, i64, ptr, i64, i64, ptr, [3 x ptr] }
%struct.slot = type { i32, i32, ptr, ptr, i64, [96 x i8] }
%struct.lib_program = type { i64, i64, i64, i64, i64, i64, i64, i64, i64, i64, i64, i64 }
%struct.lib_plan = type { i64, i64, i64, i64, i64, i64, i64, i64 }
%struct.smelt_tensor = type { ptr, i32, i32, [8 x i64] }
%struct.lib_result = type { i64, i64, i64, i64, i64, i64 }
%struct.lib_argument = type { i64, i64, i64, i64, i64 }
%struct.lib_recording = type { i64, i64, i64, i64, i64, i64, i64 }
%struct.lib_value = type { i64, i64, i64 }
%struct.lib_group = type { i64, i64, i64, i64 }
%struct.part = type { i64, i64, i64 }
%struct.lib_node = type { i64, i64, i64, i64 }
%struct.lib_function = type { i64, i64, i64, i64 }
%struct.lib_kernel = type { i64, i64 }
%struct.lib_variant = type { i64, i64, i64, i64, i64, i64 }
%struct.launch = type { i64, i64, i64, i64 }
%struct.chunk = type { ptr, i64, i64, i64 }
%struct.lib_word = type { i64, i64 }
%struct.lib_input = type { i64, i64 }
%struct.lib_step_result = type { i64, i64, i64, i64, i64, i64, i64, i64, i64, i64, i64 }

@smelt_tables = external hidden constant [0 x i64], align 8
@.str = private unnamed_addr constant [1 x i8] zeroinitializer, align 1
@.str.1 = private unnamed_addr constant [41 x i8] c"no place for the program: a null pointer\00", align 1
@.str.2 = private unnamed_addr constant [86 x i8] c"options are of another size, threads not 0 to 64, or one of alloc and release is null\00", align 1
@.str.3 = private unnamed_addr constant [12 x i8] c"no program \00", align 1
@.str.4 = private unnamed_addr constant [12 x i8] c": there is \00", align 1
@.str.5 = private unnamed_addr constant [3 x i8] c", \00", align 1
@.str.6 = private unnamed_addr constant [71 x i8] c"no code for this processor: save the program for more instruction sets\00", align 1
@the_programs = internal unnamed_addr global i64 0, align 8
@smelt_poll_words = hidden local_unnamed_addr global [3 x i64] zeroinitializer, align 16
@.str.7 = private unnamed_addr constant [14 x i8] c"/proc/cpuinfo\00", align 1
@.str.8 = private unnamed_addr constant [15 x i8] c"no memory for \00", align 1
@.str.9 = private unnamed_addr constant [7 x i8] c" bytes\00", align 1
@.str.10 = private unnamed_addr constant [23 x i8] c"/sys/fs/cgroup/cpu.max\00", align 1
@the_lock = internal global i32 0, align 4
@the_pool = internal global %struct.pool zeroinitializer, align 128
@the_process = internal unnamed_addr global i32 0, align 4
@the_threads = internal unnamed_addr global [64 x i64] zeroinitializer, align 16
@the_scratch = internal unnamed_addr global [64 x ptr] zeroinitializer, align 16
@.str.11 = private unnamed_addr constant [27 x i8] c"no program: a null pointer\00", align 1
@.str.12 = private unnamed_addr constant [8 x i8] c" takes \00", align 1
@.str.13 = private unnamed_addr constant [16 x i8] c" arguments and \00", align 1
@.str.14 = private unnamed_addr constant [15 x i8] c" results, not \00", align 1
@.str.15 = private unnamed_addr constant [6 x i8] c" and \00", align 1
@.str.16 = private unnamed_addr constant [40 x i8] c"no arguments or results: a null pointer\00", align 1
@.str.17 = private unnamed_addr constant [18 x i8] c" was called with \00", align 1
@DTYPE_NAMES = internal constant [90 x i8] c"bool\00\00i8\00\00\00\00i16\00\00\00i32\00\00\00i64\00\00\00u8\00\00\00\00u16\00\00\00u32\00\00\00u64\00\00\00f16\00\00\00bf16\00\00f32\00\00\00f64\00\00\00c64\00\00\00c128\00\00", align 16
@.str.18 = private unnamed_addr constant [16 x i8] c"an unknown type\00", align 1
@.str.19 = private unnamed_addr constant [2 x i8] c"[\00", align 1
@.str.20 = private unnamed_addr constant [6 x i8] c"rank \00", align 1
@.str.21 = private unnamed_addr constant [2 x i8] c",\00", align 1
@.str.22 = private unnamed_addr constant [2 x i8] c"]\00", align 1
@.str.23 = private unnamed_addr constant [61 x i8] c"an index is out of bounds: of an element that does not exist\00", align 1
@.str.24 = private unnamed_addr constant [10 x i8] c"argument \00", align 1
@.str.25 = private unnamed_addr constant [14 x i8] c" is too large\00", align 1
@.str.26 = private unnamed_addr constant [29 x i8] c" has no data: a null pointer\00", align 1
@.str.27 = private unnamed_addr constant [32 x i8] c" is not aligned to its elements\00", align 1
@.str.28 = private unnamed_addr constant [8 x i8] c"result \00", align 1
@.str.29 = private unnamed_addr constant [5 x i8] c" is \00", align 1
@.str.30 = private unnamed_addr constant [29 x i8] c", and memory was passed for \00", align 1
@.str.31 = private unnamed_addr constant [18 x i8] c"memory of result \00", align 1
@.str.32 = private unnamed_addr constant [40 x i8] c" overlaps an argument or another result\00", align 1
@smelt_image = external hidden constant [0 x i8], align 1
@the_tokens = internal global i64 0, align 8

define ptr @smelt_library_version() local_unnamed_addr #0 {
  %1 = load i64, ptr getelementptr inbounds (i8, ptr @smelt_tables, i64 16), align 8
  %2 = getelementptr i64, ptr @smelt_tables, i64 %1
  ret ptr %2
}

define ptr @smelt_library_describe(ptr noundef readonly %0) local_unnamed_addr #1 {
  %2 = icmp eq ptr %0, null
  br i1 %2, label %8, label %3

3:
  %4 = load ptr, ptr %0, align 8
  %5 = getelementptr inbounds i8, ptr %4, i64 8
  %6 = load i64, ptr %5, align 8
  %7 = getelementptr i64, ptr @smelt_tables, i64 %6
  br label %8

8:
  %9 = phi ptr [ %7, %3 ], [ @.str, %1 ]
  ret ptr %9
}

define noundef i32 @smelt_library_open(ptr noundef readonly %0, ptr noundef readonly %1, ptr noundef writeonly %2, ptr noundef %3) local_unnamed_addr #2 {
  %5 = alloca ptr, align 8
  %6 = load i64, ptr @smelt_tables, align 8
  %7 = getelementptr i64, ptr @smelt_tables, i64 %6
  %8 = icmp eq ptr %2, null
  br i1 %8, label %9, label %11

9:
  %10 = tail call fastcc i32 @fail(ptr noundef %3, i32 noundef 1, ptr noundef nonnull @.str.1) #17
  br label %142

11:
  store ptr null, ptr %2, align 8
  %12 = icmp eq ptr %1, null
  br i1 %12, label %30, label %13

13:
  %14 = load i64, ptr %1, align 8
  %15 = icmp eq i64 %14, 40
  br i1 %15, label %16, label %28

16:
  %17 = getelementptr inbounds i8, ptr %1, i64 16
  %18 = load ptr, ptr %17, align 8
  %19 = icmp eq ptr %18, null
  %20 = getelementptr inbounds i8, ptr %1, i64 24
  %21 = load ptr, ptr %20, align 8
  %22 = icmp ne ptr %21, null
  %23 = xor i1 %19, %22
  br i1 %23, label %24, label %28

24:
  %25 = getelementptr inbounds i8, ptr %1, i64 8
  %26 = load i64, ptr %25, align 8
  %27 = icmp ugt i64 %26, 64
  br i1 %27, label %28, label %30

28:
  %29 = tail call fastcc i32 @fail(ptr noundef %3, i32 noundef 1, ptr noundef nonnull @.str.2) #17
  br label %142

30:
  %31 = load i64, ptr getelementptr inbounds (i8, ptr @smelt_tables, i64 8), align 8
  %32 = icmp eq ptr %0, null
  %33 = tail call i64 @llvm.smax.i64(i64 %31, i64 0)
  br label %34

34:
  %35 = phi i64 [ 0, %30 ], [ %64, %62 ]
  %36 = icmp eq i64 %35, %33
  br i1 %36, label %66, label %37

37:
  br i1 %32, label %60, label %38

38:
  %39 = getelementptr %struct.lib_program, ptr %7, i64 %35
  %40 = load i64, ptr %39, align 8
  %41 = getelementptr i64, ptr @smelt_tables, i64 %40
  %42 = load i8, ptr %0, align 1
  %43 = icmp eq i8 %42, 0
  br i1 %43, label %55, label %44

44:
  %45 = phi i8 [ %53, %50 ], [ %42, %38 ]
  %46 = phi ptr [ %52, %50 ], [ %41, %38 ]
  %47 = phi ptr [ %51, %50 ], [ %0, %38 ]
  %48 = load i8, ptr %46, align 1
  %49 = icmp eq i8 %45, %48
  br i1 %49, label %50, label %55

50:
  %51 = getelementptr i8, ptr %47, i64 1
  %52 = getelementptr i8, ptr %46, i64 1
  %53 = load i8, ptr %51, align 1
  %54 = icmp eq i8 %53, 0
  br i1 %54, label %55, label %44

55:
  %56 = phi ptr [ %41, %38 ], [ %46, %44 ], [ %52, %50 ]
  %57 = phi i8 [ 0, %38 ], [ %45, %44 ], [ 0, %50 ]
  %58 = load i8, ptr %56, align 1
  %59 = icmp eq i8 %57, %58
  br i1 %59, label %60, label %62

60:
  %61 = getelementptr %struct.lib_program, ptr %7, i64 %35
  br label %62

62:
  %63 = phi ptr [ %61, %60 ], [ null, %55 ]
  %64 = add nuw i64 %35, 1
  %65 = icmp eq ptr %63, null
  br i1 %65, label %34, label %78

66:
  %67 = tail call fastcc i32 @fail(ptr noundef %3, i32 noundef 7, ptr noundef nonnull @.str.3) #17
  tail call fastcc void @say(ptr noundef %3, ptr noundef %0) #17
  tail call fastcc void @say(ptr noundef %3, ptr noundef nonnull @.str.4) #17
  %68 = icmp sgt i64 %31, 0
  br i1 %68, label %69, label %142

69:
  %70 = phi i64 [ %76, %69 ], [ 0, %66 ]
  %71 = icmp eq i64 %70, 0
  %72 = select i1 %71, ptr @.str, ptr @.str.5
  tail call fastcc void @say(ptr noundef %3, ptr noundef nonnull %72) #17
  %73 = getelementptr %struct.lib_program, ptr %7, i64 %70
  %74 = load i64, ptr %73, align 8
  %75 = getelementptr i64, ptr @smelt_tables, i64 %74
  tail call fastcc void @say(ptr noundef %3, ptr noundef %75) #17
  %76 = add nuw nsw i64 %70, 1
  %77 = icmp eq i64 %76, %31
  br i1 %77, label %142, label %69

78:
  %79 = tail call fastcc ptr @usable_features(ptr noundef nonnull %63) #17
  %80 = icmp eq ptr %79, null
  br i1 %80, label %81, label %83

81:
  %82 = tail call fastcc i32 @fail(ptr noundef %3, i32 noundef 6, ptr noundef nonnull @.str.6) #17
  br label %142

83:
  br i1 %12, label %88, label %84

84:
  %85 = getelementptr inbounds i8, ptr %1, i64 16
  %86 = load ptr, ptr %85, align 8
  %87 = icmp eq ptr %86, null
  br i1 %87, label %88, label %94

88:
  call void @llvm.lifetime.start.p0(i64 8, ptr nonnull %5) #18
  %89 = call i32 @posix_memalign(ptr noundef nonnull %5, i64 noundef 64, i64 noundef 56) #19
  %90 = icmp ne i32 %89, 0
  %91 = load ptr, ptr %5, align 8
  call void @llvm.lifetime.end.p0(i64 8, ptr nonnull %5) #18
  %92 = icmp eq ptr %91, null
  %93 = select i1 %90, i1 true, i1 %92
  br i1 %93, label %99, label %100

94:
  %95 = getelementptr inbounds i8, ptr %1, i64 32
  %96 = load ptr, ptr %95, align 8
  %97 = tail call ptr %86(i64 noundef 56, i64 noundef 64, ptr noundef %96) #19
  %98 = icmp eq ptr %97, null
  br i1 %98, label %99, label %102

99:
  call fastcc void @no_memory(ptr noundef %3, i64 noundef 56) #17
  br label %142

100:
  store ptr %63, ptr %91, align 8
  %101 = getelementptr inbounds i8, ptr %91, i64 8
  store ptr %79, ptr %101, align 8
  br i1 %12, label %113, label %109

102:
  store ptr %63, ptr %97, align 8
  %103 = getelementptr inbounds i8, ptr %97, i64 8
  store ptr %79, ptr %103, align 8
  %104 = getelementptr inbounds i8, ptr %1, i64 8
  %105 = load i64, ptr %104, align 8
  %106 = icmp eq i64 %105, 0
  br i1 %106, label %107, label %120

107:
  %108 = tail call fastcc i64 @usable_processors() #17
  br label %120

109:
  %110 = getelementptr inbounds i8, ptr %1, i64 8
  %111 = load i64, ptr %110, align 8
  %112 = icmp eq i64 %111, 0
  br i1 %112, label %113, label %115

113:
  %114 = call fastcc i64 @usable_processors() #17
  br label %115

115:
  %116 = phi i64 [ %111, %109 ], [ %114, %113 ]
  %117 = getelementptr inbounds i8, ptr %91, i64 16
  store i64 %116, ptr %117, align 8
  %118 = getelementptr inbounds i8, ptr %91, i64 24
  store ptr @allocate, ptr %118, align 8
  %119 = getelementptr inbounds i8, ptr %91, i64 32
  store ptr @release, ptr %119, align 8
  br label %131

120:
  %121 = phi i64 [ %108, %107 ], [ %105, %102 ]
  %122 = getelementptr inbounds i8, ptr %97, i64 16
  store i64 %121, ptr %122, align 8
  %123 = getelementptr inbounds i8, ptr %1, i64 16
  %124 = load ptr, ptr %123, align 8
  %125 = getelementptr inbounds i8, ptr %97, i64 24
  store ptr %124, ptr %125, align 8
  %126 = getelementptr inbounds i8, ptr %1, i64 24
  %127 = load ptr, ptr %126, align 8
  %128 = getelementptr inbounds i8, ptr %97, i64 32
  store ptr %127, ptr %128, align 8
  %129 = getelementptr inbounds i8, ptr %1, i64 32
  %130 = load ptr, ptr %129, align 8
  br label %131

131:
  %132 = phi ptr [ %97, %120 ], [ %91, %115 ]
  %133 = phi ptr [ %130, %120 ], [ null, %115 ]
  %134 = getelementptr inbounds i8, ptr %132, i64 40
  store ptr %133, ptr %134, align 8
  %135 = getelementptr inbounds i8, ptr %132, i64 48
  store atomic i64 0, ptr %135 monotonic, align 8
  call fastcc void @lock() #17
  %136 = load i64, ptr @the_programs, align 8
  %137 = add i64 %136, 1
  store i64 %137, ptr @the_programs, align 8
  %138 = icmp eq i64 %136, 0
  br i1 %138, label %139, label %140

139:
  call fastcc void @start_pool() #17
  br label %140

140:
  store atomic i32 0, ptr @the_lock release, align 4
  store ptr %132, ptr %2, align 8
  %141 = call fastcc i32 @well(ptr noundef %3) #17
  br label %142

142:
  %143 = phi i32 [ 1, %28 ], [ 1, %9 ], [ 6, %81 ], [ %141, %140 ], [ 5, %99 ], [ 7, %66 ], [ 7, %69 ]
  ret i32 %143
}

declare void @llvm.lifetime.start.p0(i64 immarg, ptr nocapture) #3

define internal fastcc noundef i32 @fail(ptr noundef %0, i32 noundef returned %1, ptr nocapture noundef readonly %2) unnamed_addr #4 {
  %4 = icmp eq ptr %0, null
  br i1 %4, label %7, label %5

5:
  store i32 %1, ptr %0, align 4
  %6 = getelementptr inbounds i8, ptr %0, i64 4
  store i8 0, ptr %6, align 4
  br label %7

7:
  tail call fastcc void @say(ptr noundef %0, ptr noundef %2) #17
  ret i32 %1
}

declare void @llvm.lifetime.end.p0(i64 immarg, ptr nocapture) #3

define internal fastcc void @say(ptr noundef %0, ptr nocapture noundef readonly %1) unnamed_addr #4 {
  %3 = icmp eq ptr %0, null
  br i1 %3, label %31, label %4

4:
  %5 = getelementptr inbounds i8, ptr %0, i64 4
  br label %6

6:
  %7 = phi i64 [ %11, %6 ], [ 0, %4 ]
  %8 = getelementptr [508 x i8], ptr %5, i64 0, i64 %7
  %9 = load i8, ptr %8, align 1
  %10 = icmp eq i8 %9, 0
  %11 = add i64 %7, 1
  br i1 %10, label %12, label %6

12:
  %13 = load i8, ptr %1, align 1
  %14 = icmp ne i8 %13, 0
  %15 = icmp slt i64 %7, 507
  %16 = and i1 %14, %15
  br i1 %16, label %17, label %28

17:
  %18 = phi i8 [ %24, %17 ], [ %13, %12 ]
  %19 = phi i64 [ %22, %17 ], [ %7, %12 ]
  %20 = phi ptr [ %21, %17 ], [ %1, %12 ]
  %21 = getelementptr i8, ptr %20, i64 1
  %22 = add nsw i64 %19, 1
  %23 = getelementptr [508 x i8], ptr %5, i64 0, i64 %19
  store i8 %18, ptr %23, align 1
  %24 = load i8, ptr %21, align 1
  %25 = icmp ne i8 %24, 0
  %26 = icmp slt i64 %19, 506
  %27 = and i1 %25, %26
  br i1 %27, label %17, label %28

28:
  %29 = phi i64 [ %7, %12 ], [ %22, %17 ]
  %30 = getelementptr [508 x i8], ptr %5, i64 0, i64 %29
  store i8 0, ptr %30, align 1
  br label %31

31:
  ret void
}

define internal fastcc ptr @usable_features(ptr nocapture noundef readonly %0) unnamed_addr #5 {
  %2 = alloca [16384 x i8], align 16
  %3 = getelementptr inbounds i8, ptr %0, i64 16
  %4 = load i64, ptr %3, align 8
  %5 = getelementptr i64, ptr @smelt_tables, i64 %4
  %6 = getelementptr inbounds i8, ptr %5, i64 40
  %7 = load i64, ptr %6, align 8
  %8 = getelementptr i64, ptr @smelt_tables, i64 %7
  call void @llvm.lifetime.start.p0(i64 16384, ptr nonnull %2) #18
  call fastcc void @read_text(ptr noundef nonnull @.str.7, ptr noundef nonnull %2, i64 noundef 16384) #17
  %9 = getelementptr inbounds i8, ptr %5, i64 48
  %10 = load i64, ptr %9, align 8
  %11 = icmp sgt i64 %10, 0
  br i1 %11, label %12, label %44

12:
  %13 = phi i64 [ %42, %41 ], [ 0, %1 ]
  %14 = getelementptr %struct.lib_plan, ptr %8, i64 %13
  %15 = load i64, ptr %14, align 8
  %16 = getelementptr i64, ptr @smelt_tables, i64 %15
  br label %17

17:
  %18 = phi ptr [ %16, %12 ], [ %39, %40 ]
  %19 = load i8, ptr %18, align 1
  %20 = icmp eq i8 %19, 0
  br i1 %20, label %44, label %21

21:
  %22 = phi i1 [ %34, %33 ], [ false, %17 ]
  %23 = phi ptr [ %39, %33 ], [ %18, %17 ]
  br label %24

24:
  %25 = phi i64 [ %29, %28 ], [ 0, %21 ]
  %26 = getelementptr i8, ptr %23, i64 %25
  %27 = load i8, ptr %26, align 1
  switch i8 %27, label %28 [
    i8 32, label %30
    i8 10, label %30
    i8 9, label %30
    i8 0, label %30
    i8 124, label %30
  ]

28:
  %29 = add i64 %25, 1
  br label %24

30:
  br i1 %22, label %33, label %31

31:
  %32 = call fastcc zeroext i1 @has_word(ptr noundef nonnull %2, ptr noundef nonnull %23, i64 noundef %25) #17
  br label %33

33:
  %34 = phi i1 [ true, %30 ], [ %32, %31 ]
  %35 = icmp eq i8 %27, 124
  %36 = icmp ne i8 %27, 0
  %37 = zext i1 %36 to i64
  %38 = add i64 %25, %37
  %39 = getelementptr i8, ptr %23, i64 %38
  br i1 %35, label %21, label %40

40:
  br i1 %34, label %17, label %41

41:
  %42 = add nuw nsw i64 %13, 1
  %43 = icmp eq i64 %42, %10
  br i1 %43, label %44, label %12

44:
  %45 = phi ptr [ null, %1 ], [ %16, %17 ], [ null, %41 ]
  call void @llvm.lifetime.end.p0(i64 16384, ptr nonnull %2) #18
  ret ptr %45
}

define internal ptr @allocate(i64 noundef %0, i64 noundef %1, ptr nocapture readnone %2) #2 {
  %4 = alloca ptr, align 8
  call void @llvm.lifetime.start.p0(i64 8, ptr nonnull %4) #18
  %5 = call i32 @posix_memalign(ptr noundef nonnull %4, i64 noundef %1, i64 noundef %0) #19
  %6 = icmp eq i32 %5, 0
  %7 = load ptr, ptr %4, align 8
  %8 = select i1 %6, ptr %7, ptr null
  call void @llvm.lifetime.end.p0(i64 8, ptr nonnull %4) #18
  ret ptr %8
}

define internal fastcc void @no_memory(ptr noundef %0, i64 noundef %1) unnamed_addr #4 {
  %3 = tail call fastcc i32 @fail(ptr noundef %0, i32 noundef 5, ptr noundef nonnull @.str.8) #17
  tail call fastcc void @say_number(ptr noundef %0, i64 noundef %1) #17
  tail call fastcc void @say(ptr noundef %0, ptr noundef nonnull @.str.9) #17
  ret void
}

define internal fastcc i64 @usable_processors() unnamed_addr #5 {
  %1 = alloca [16 x i64], align 16
  %2 = alloca [64 x i8], align 16
  %3 = alloca [2 x i64], align 16
  call void @llvm.lifetime.start.p0(i64 128, ptr nonnull %1) #18
  call void @llvm.lifetime.start.p0(i64 64, ptr nonnull %2) #18
  call void @llvm.lifetime.start.p0(i64 16, ptr nonnull %3) #18
  call void @llvm.memset.p0.i64(ptr noundef nonnull align 16 dereferenceable(16) %3, i8 0, i64 16, i1 false)
  br label %7

4:
  %5 = load i64, ptr getelementptr inbounds (i8, ptr @smelt_tables, i64 32), align 8
  %6 = call i64 (i64, ...) @syscall(i64 noundef %5, i64 noundef 0, i64 noundef 128, ptr noundef nonnull %1) #19
  br label %15

7:
  %8 = phi i64 [ 0, %0 ], [ %10, %7 ]
  %9 = getelementptr [16 x i64], ptr %1, i64 0, i64 %8
  store i64 0, ptr %9, align 8
  %10 = add nuw nsw i64 %8, 1
  %11 = icmp eq i64 %10, 16
  br i1 %11, label %4, label %7

12:
  call fastcc void @read_text(ptr noundef nonnull @.str.10, ptr noundef nonnull %2, i64 noundef 64) #17
  %13 = load i8, ptr %2, align 16
  %14 = icmp eq i8 %13, 0
  br i1 %14, label %69, label %39

15:
  %16 = phi i64 [ 0, %4 ], [ %23, %21 ]
  %17 = phi i64 [ 0, %4 ], [ %22, %21 ]
  %18 = getelementptr [16 x i64], ptr %1, i64 0, i64 %16
  %19 = load i64, ptr %18, align 8
  %20 = icmp eq i64 %19, 0
  br i1 %20, label %21, label %25

21:
  %22 = phi i64 [ %17, %15 ], [ %28, %25 ]
  %23 = add nuw nsw i64 %16, 1
  %24 = icmp eq i64 %23, 16
  br i1 %24, label %12, label %15

25:
  %26 = phi i64 [ %28, %25 ], [ %17, %15 ]
  %27 = phi i64 [ %30, %25 ], [ %19, %15 ]
  %28 = add i64 %26, 1
  %29 = add i64 %27, -1
  %30 = and i64 %29, %27
  %31 = icmp eq i64 %30, 0
  br i1 %31, label %21, label %25

32:
  %33 = load i64, ptr %3, align 16
  %34 = getelementptr inbounds i8, ptr %3, i64 8
  %35 = load i64, ptr %34, align 8
  %36 = icmp sgt i64 %33, 0
  %37 = icmp sgt i64 %35, 0
  %38 = select i1 %36, i1 %37, i1 false
  br i1 %38, label %64, label %69

39:
  %40 = phi i8 [ %60, %55 ], [ %13, %12 ]
  %41 = phi i32 [ %56, %55 ], [ 0, %12 ]
  %42 = phi i32 [ %57, %55 ], [ 0, %12 ]
  switch i8 %40, label %45 [
    i8 32, label %43
    i8 10, label %43
    i8 9, label %43
  ]

43:
  %44 = add nsw i32 %41, 1
  br label %55

45:
  %46 = add i8 %40, -48
  %47 = icmp ult i8 %46, 10
  br i1 %47, label %48, label %55

48:
  %49 = sext i32 %41 to i64
  %50 = getelementptr [2 x i64], ptr %3, i64 0, i64 %49
  %51 = load i64, ptr %50, align 8
  %52 = mul i64 %51, 10
  %53 = zext nneg i8 %46 to i64
  %54 = add i64 %52, %53
  store i64 %54, ptr %50, align 8
  br label %55

55:
  %56 = phi i32 [ %44, %43 ], [ %41, %48 ], [ %41, %45 ]
  %57 = add i32 %42, 1
  %58 = sext i32 %57 to i64
  %59 = getelementptr [64 x i8], ptr %2, i64 0, i64 %58
  %60 = load i8, ptr %59, align 1
  %61 = icmp ne i8 %60, 0
  %62 = icmp slt i32 %56, 2
  %63 = select i1 %61, i1 %62, i1 false
  br i1 %63, label %39, label %32

64:
  %65 = add nsw i64 %33, -1
  %66 = add nuw i64 %65, %35
  %67 = sdiv i64 %66, %35
  %68 = call i64 @llvm.smin.i64(i64 %22, i64 %67)
  br label %69

69:
  %70 = phi i64 [ %68, %64 ], [ %22, %32 ], [ %22, %12 ]
  %71 = call i64 @llvm.smin.i64(i64 %70, i64 64)
  %72 = call i64 @llvm.smax.i64(i64 %71, i64 1)
  call void @llvm.lifetime.end.p0(i64 16, ptr nonnull %3) #18
  call void @llvm.lifetime.end.p0(i64 64, ptr nonnull %2) #18
  call void @llvm.lifetime.end.p0(i64 128, ptr nonnull %1) #18
  ret i64 %72
}

define internal void @release(ptr noundef %0, ptr nocapture readnone %1) #2 {
  tail call void @free(ptr noundef %0) #19
  ret void
}

define internal fastcc void @lock() unnamed_addr #5 {
  %1 = atomicrmw xchg ptr @the_lock, i32 1 acquire, align 4
  %2 = icmp eq i32 %1, 0
  br i1 %2, label %7, label %3

3:
  %4 = tail call i32 @sched_yield() #19
  %5 = atomicrmw xchg ptr @the_lock, i32 1 acquire, align 4
  %6 = icmp eq i32 %5, 0
  br i1 %6, label %7, label %3

7:
  ret void
}

define internal fastcc void @start_pool() unnamed_addr #5 {
  %1 = tail call i32 @getpid() #19
  store i32 %1, ptr @the_process, align 4
  store ptr @the_pool, ptr getelementptr inbounds (i8, ptr @the_pool, i64 1368), align 8
  store ptr @smelt_helper, ptr getelementptr inbounds (i8, ptr @the_pool, i64 680), align 8
  %2 = load i64, ptr getelementptr inbounds (i8, ptr @smelt_tables, i64 48), align 8
  store i64 %2, ptr getelementptr inbounds (i8, ptr @the_pool, i64 656), align 16
  store i64 65535, ptr getelementptr inbounds (i8, ptr @the_pool, i64 672), align 32
  %3 = load i64, ptr getelementptr inbounds (i8, ptr @smelt_tables, i64 24), align 8
  store i64 %3, ptr getelementptr inbounds (i8, ptr @the_pool, i64 688), align 16
  store i64 1, ptr getelementptr inbounds (i8, ptr @the_pool, i64 696), align 8
  store i64 2, ptr getelementptr inbounds (i8, ptr @the_pool, i64 704), align 64
  store i64 0, ptr getelementptr inbounds (i8, ptr @the_pool, i64 712), align 8
  store ptr @clock_gettime, ptr getelementptr inbounds (i8, ptr @the_pool, i64 720), align 16
  store ptr @syscall, ptr getelementptr inbounds (i8, ptr @the_pool, i64 728), align 8
  store ptr @sched_yield, ptr getelementptr inbounds (i8, ptr @the_pool, i64 736), align 32
  store ptr @pthread_attr_init, ptr getelementptr inbounds (i8, ptr @the_pool, i64 744), align 8
  store ptr @pthread_attr_setstacksize, ptr getelementptr inbounds (i8, ptr @the_pool, i64 752), align 16
  store ptr @pthread_attr_setdetachstate, ptr getelementptr inbounds (i8, ptr @the_pool, i64 760), align 8
  store ptr @create_thread, ptr getelementptr inbounds (i8, ptr @the_pool, i64 768), align 128
  store ptr @sigfillset, ptr getelementptr inbounds (i8, ptr @the_pool, i64 776), align 8
  store ptr @pthread_sigmask, ptr getelementptr inbounds (i8, ptr @the_pool, i64 784), align 16
  store ptr @sched_getcpu, ptr getelementptr inbounds (i8, ptr @the_pool, i64 824), align 8
  store ptr @get_affinity, ptr getelementptr inbounds (i8, ptr @the_pool, i64 832), align 64
  store ptr @set_affinity, ptr getelementptr inbounds (i8, ptr @the_pool, i64 840), align 8
  store ptr @no_value, ptr getelementptr inbounds (i8, ptr @the_pool, i64 856), align 8
  store ptr @keep_no_value, ptr getelementptr inbounds (i8, ptr @the_pool, i64 864), align 32
  ret void
}

define internal fastcc noundef i32 @well(ptr noundef %0) unnamed_addr #4 {
  %2 = tail call fastcc i32 @fail(ptr noundef %0, i32 noundef 0, ptr noundef nonnull @.str) #17
  ret i32 0
}

define void @smelt_library_close(ptr noundef %0) local_unnamed_addr #2 {
  %2 = icmp eq ptr %0, null
  br i1 %2, label %16, label %3

3:
  %4 = getelementptr inbounds i8, ptr %0, i64 48
  %5 = atomicrmw xchg ptr %4, i64 0 seq_cst, align 8
  %6 = inttoptr i64 %5 to ptr
  tail call fastcc void @free_workspace(ptr noundef nonnull %0, ptr noundef %6) #17
  %7 = getelementptr inbounds i8, ptr %0, i64 32
  %8 = load ptr, ptr %7, align 8
  %9 = getelementptr inbounds i8, ptr %0, i64 40
  %10 = load ptr, ptr %9, align 8
  tail call void %8(ptr noundef nonnull %0, ptr noundef %10) #19
  tail call fastcc void @lock() #17
  %11 = load i64, ptr @the_programs, align 8
  %12 = add i64 %11, -1
  store i64 %12, ptr @the_programs, align 8
  %13 = icmp eq i64 %12, 0
  br i1 %13, label %14, label %15

14:
  tail call fastcc void @stop_pool() #17
  br label %15

15:
  store atomic i32 0, ptr @the_lock release, align 4
  br label %16

16:
  ret void
}

define internal fastcc void @free_workspace(ptr nocapture noundef readonly %0, ptr noundef %1) unnamed_addr #5 {
  %3 = icmp eq ptr %1, null
  br i1 %3, label %18, label %4

4:
  %5 = getelementptr inbounds i8, ptr %1, i64 32
  %6 = load ptr, ptr %5, align 8
  %7 = icmp eq ptr %6, null
  br i1 %7, label %13, label %8

8:
  %9 = getelementptr inbounds i8, ptr %0, i64 32
  %10 = load ptr, ptr %9, align 8
  %11 = getelementptr inbounds i8, ptr %0, i64 40
  %12 = load ptr, ptr %11, align 8
  tail call void %10(ptr noundef nonnull %6, ptr noundef %12) #19
  br label %13

13:
  %14 = getelementptr inbounds i8, ptr %0, i64 32
  %15 = load ptr, ptr %14, align 8
  %16 = getelementptr inbounds i8, ptr %0, i64 40
  %17 = load ptr, ptr %16, align 8
  tail call void %15(ptr noundef nonnull %1, ptr noundef %17) #19
  br label %18

18:
  ret void
}

define internal fastcc void @stop_pool() unnamed_addr #5 {
  %1 = load i32, ptr @the_process, align 4
  %2 = tail call i32 @getpid() #19
  %3 = icmp eq i32 %1, %2
  %4 = load atomic i32, ptr getelementptr inbounds (i8, ptr @the_pool, i64 644) monotonic, align 4
  store atomic i32 1, ptr getelementptr inbounds (i8, ptr @the_pool, i64 640) seq_cst, align 128
  store atomic i32 0, ptr getelementptr inbounds (i8, ptr @the_pool, i64 644) seq_cst, align 4
  %5 = icmp ne i32 %4, 0
  %6 = select i1 %3, i1 %5, i1 false
  br i1 %6, label %8, label %7

7:
  br label %10

8:
  tail call void @smelt_wake(ptr noundef nonnull @the_pool) #19
  br label %7

9:
  store i64 0, ptr getelementptr inbounds (i8, ptr @the_pool, i64 648), align 8
  ret void

10:
  %11 = phi i64 [ %22, %18 ], [ 0, %7 ]
  %12 = getelementptr [64 x i64], ptr @the_threads, i64 0, i64 %11
  %13 = load i64, ptr %12, align 8
  %14 = icmp ne i64 %13, 0
  %15 = and i1 %3, %14
  br i1 %15, label %16, label %18

16:
  %17 = tail call i32 @pthread_join(i64 noundef %13, ptr noundef null) #19
  br label %18

18:
  store i64 0, ptr %12, align 8
  %19 = getelementptr [64 x %struct.slot], ptr getelementptr inbounds (i8, ptr @the_pool, i64 1408), i64 0, i64 %11
  store atomic i32 0, ptr %19 seq_cst, align 128
  %20 = getelementptr [64 x ptr], ptr @the_scratch, i64 0, i64 %11
  %21 = load ptr, ptr %20, align 8
  tail call void @free(ptr noundef %21) #19
  store ptr null, ptr %20, align 8
  %22 = add nuw nsw i64 %11, 1
  %23 = icmp eq i64 %22, 64
  br i1 %23, label %9, label %10
}

define void @smelt_library_unload() local_unnamed_addr #2 {
  %1 = load i64, ptr @the_programs, align 8
  %2 = icmp eq i64 %1, 0
  br i1 %2, label %4, label %3

3:
  tail call fastcc void @stop_pool() #17
  br label %4

4:
  ret void
}

define i32 @smelt_library_shapes(ptr noundef %0, ptr noundef %1, i32 noundef %2, ptr noundef %3, i32 noundef %4, ptr noundef %5) local_unnamed_addr #2 {
  %7 = tail call fastcc i32 @check_call(ptr noundef %0, ptr noundef %1, i32 noundef %2, ptr noundef %3, i32 noundef %4, ptr noundef %5) #17
  %8 = icmp eq i32 %7, 0
  br i1 %8, label %9, label %24

9:
  %10 = load ptr, ptr %0, align 8
  %11 = sext i32 %2 to i64
  %12 = getelementptr inbounds i8, ptr %10, i64 32
  %13 = load i64, ptr %12, align 8
  %14 = icmp eq i64 %13, %11
  br i1 %14, label %15, label %20

15:
  %16 = sext i32 %4 to i64
  %17 = getelementptr inbounds i8, ptr %10, i64 40
  %18 = load i64, ptr %17, align 8
  %19 = icmp eq i64 %18, %16
  br i1 %19, label %22, label %20

20:
  %21 = tail call fastcc i32 @call_with_parts(ptr noundef nonnull %0, ptr noundef %1, ptr noundef %3, i1 noundef zeroext false, ptr noundef %5) #17
  br label %24

22:
  %23 = tail call fastcc i32 @find_shapes(ptr noundef nonnull %0, ptr noundef %1, ptr noundef %3, ptr noundef %5) #17
  br label %24

24:
  %25 = phi i32 [ %7, %6 ], [ %21, %20 ], [ %23, %22 ]
  ret i32 %25
}

define i32 @smelt_library_run(ptr noundef %0, ptr noundef %1, i32 noundef %2, ptr noundef %3, i32 noundef %4, ptr noundef %5) local_unnamed_addr #2 {
  %7 = tail call fastcc i32 @check_call(ptr noundef %0, ptr noundef %1, i32 noundef %2, ptr noundef %3, i32 noundef %4, ptr noundef %5) #17
  %8 = icmp eq i32 %7, 0
  br i1 %8, label %9, label %24

9:
  %10 = load ptr, ptr %0, align 8
  %11 = sext i32 %2 to i64
  %12 = getelementptr inbounds i8, ptr %10, i64 32
  %13 = load i64, ptr %12, align 8
  %14 = icmp eq i64 %13, %11
  br i1 %14, label %15, label %20

15:
  %16 = sext i32 %4 to i64
  %17 = getelementptr inbounds i8, ptr %10, i64 40
  %18 = load i64, ptr %17, align 8
  %19 = icmp eq i64 %18, %16
  br i1 %19, label %22, label %20

20:
  %21 = tail call fastcc i32 @call_with_parts(ptr noundef nonnull %0, ptr noundef %1, ptr noundef %3, i1 noundef zeroext true, ptr noundef %5) #17
  br label %24

22:
  %23 = tail call fastcc i32 @run_arrays(ptr noundef nonnull %0, ptr noundef %1, ptr noundef %3, ptr noundef %5) #17
  br label %24

24:
  %25 = phi i32 [ %7, %6 ], [ %21, %20 ], [ %23, %22 ]
  ret i32 %25
}

define internal fastcc void @read_text(ptr noundef %0, ptr noundef %1, i64 noundef %2) unnamed_addr #5 {
  %4 = tail call i32 (ptr, i32, ...) @open(ptr noundef %0, i32 noundef 0) #19
  %5 = icmp sgt i32 %4, -1
  br i1 %5, label %6, label %22

6:
  %7 = add nsw i64 %2, -1
  %8 = icmp sgt i64 %2, 1
  br i1 %8, label %9, label %19

9:
  %10 = phi i64 [ %15, %9 ], [ 0, %6 ]
  %11 = getelementptr i8, ptr %1, i64 %10
  %12 = sub i64 %7, %10
  %13 = tail call i64 @read(i32 noundef %4, ptr noundef %11, i64 noundef %12) #19
  %14 = tail call i64 @llvm.smax.i64(i64 %13, i64 0)
  %15 = add i64 %14, %10
  %16 = icmp slt i64 %15, %7
  %17 = icmp sgt i64 %13, 0
  %18 = and i1 %16, %17
  br i1 %18, label %9, label %19

19:
  %20 = phi i64 [ 0, %6 ], [ %15, %9 ]
  %21 = tail call i32 @close(i32 noundef %4) #19
  br label %22

22:
  %23 = phi i64 [ %20, %19 ], [ 0, %3 ]
  %24 = getelementptr i8, ptr %1, i64 %23
  store i8 0, ptr %24, align 1
  ret void
}

declare i32 @open(ptr noundef, i32 noundef, ...) local_unnamed_addr #6

declare i64 @read(i32 noundef, ptr noundef, i64 noundef) local_unnamed_addr #6

declare i32 @close(i32 noundef) local_unnamed_addr #6

define internal fastcc noundef zeroext i1 @has_word(ptr noundef readonly %0, ptr nocapture noundef readonly %1, i64 noundef %2) unnamed_addr #7 {
  %4 = load i8, ptr %0, align 1
  %5 = icmp eq i8 %4, 0
  br i1 %5, label %35, label %6

6:
  %7 = icmp sgt i64 %2, 0
  br label %8

8:
  %9 = phi ptr [ %0, %6 ], [ %32, %31 ]
  %10 = icmp eq ptr %9, %0
  br i1 %10, label %14, label %11

11:
  %12 = getelementptr i8, ptr %9, i64 -1
  %13 = load i8, ptr %12, align 1
  switch i8 %13, label %31 [
    i8 32, label %14
    i8 10, label %14
    i8 9, label %14
    i8 0, label %14
  ]

14:
  br i1 %7, label %15, label %25

15:
  %16 = phi i64 [ %23, %22 ], [ 0, %14 ]
  %17 = getelementptr i8, ptr %9, i64 %16
  %18 = load i8, ptr %17, align 1
  %19 = getelementptr i8, ptr %1, i64 %16
  %20 = load i8, ptr %19, align 1
  %21 = icmp eq i8 %18, %20
  br i1 %21, label %22, label %25

22:
  %23 = add nuw nsw i64 %16, 1
  %24 = icmp eq i64 %23, %2
  br i1 %24, label %28, label %15

25:
  %26 = phi i64 [ 0, %14 ], [ %16, %15 ]
  %27 = icmp eq i64 %26, %2
  br i1 %27, label %28, label %31

28:
  %29 = getelementptr i8, ptr %9, i64 %2
  %30 = load i8, ptr %29, align 1
  switch i8 %30, label %31 [
    i8 32, label %35
    i8 10, label %35
    i8 9, label %35
    i8 0, label %35
  ]

31:
  %32 = getelementptr i8, ptr %9, i64 1
  %33 = load i8, ptr %32, align 1
  %34 = icmp eq i8 %33, 0
  br i1 %34, label %35, label %8

35:
  %36 = phi i1 [ false, %3 ], [ true, %28 ], [ true, %28 ], [ true, %28 ], [ true, %28 ], [ false, %31 ]
  ret i1 %36
}

declare i32 @posix_memalign(ptr noundef, i64 noundef, i64 noundef) local_unnamed_addr #6

define internal fastcc void @say_number(ptr noundef %0, i64 noundef %1) unnamed_addr #4 {
  %3 = alloca [24 x i8], align 16
  call void @llvm.lifetime.start.p0(i64 24, ptr nonnull %3) #18
  %4 = tail call i64 @llvm.abs.i64(i64 %1, i1 false)
  %5 = getelementptr inbounds i8, ptr %3, i64 23
  store i8 0, ptr %5, align 1
  br label %6

6:
  %7 = phi i32 [ 23, %2 ], [ %12, %6 ]
  %8 = phi i64 [ %4, %2 ], [ %15, %6 ]
  %9 = urem i64 %8, 10
  %10 = trunc nuw nsw i64 %9 to i8
  %11 = or disjoint i8 %10, 48
  %12 = add i32 %7, -1
  %13 = sext i32 %12 to i64
  %14 = getelementptr [24 x i8], ptr %3, i64 0, i64 %13
  store i8 %11, ptr %14, align 1
  %15 = udiv i64 %8, 10
  %16 = icmp ult i64 %8, 10
  br i1 %16, label %17, label %6

17:
  %18 = icmp slt i64 %1, 0
  br i1 %18, label %19, label %23

19:
  %20 = add i32 %7, -2
  %21 = sext i32 %20 to i64
  %22 = getelementptr [24 x i8], ptr %3, i64 0, i64 %21
  store i8 45, ptr %22, align 1
  br label %23

23:
  %24 = phi i64 [ %21, %19 ], [ %13, %17 ]
  %25 = getelementptr i8, ptr %3, i64 %24
  call fastcc void @say(ptr noundef %0, ptr noundef %25) #17
  call void @llvm.lifetime.end.p0(i64 24, ptr nonnull %3) #18
  ret void
}

declare void @llvm.memset.p0.i64(ptr nocapture writeonly, i8, i64, i1 immarg) #8

declare i64 @syscall(i64 noundef, ...) #6

declare void @free(ptr noundef) local_unnamed_addr #6

declare i32 @sched_yield() #6

declare i32 @getpid() local_unnamed_addr #6

declare hidden ptr @smelt_helper(ptr noundef) #6

declare i32 @clock_gettime(i32 noundef, ptr noundef) #6

declare i32 @pthread_attr_init(ptr noundef) #6

declare i32 @pthread_attr_setstacksize(ptr noundef, i64 noundef) #6

declare i32 @pthread_attr_setdetachstate(ptr noundef, i32 noundef) #6

define internal i32 @create_thread(ptr noundef %0, ptr noundef %1, ptr noundef %2, ptr noundef %3) #2 {
  %5 = tail call i32 @pthread_create(ptr noundef %0, ptr noundef %1, ptr noundef %2, ptr noundef %3) #19
  %6 = icmp eq i32 %5, 0
  br i1 %6, label %7, label %13

7:
  %8 = load i64, ptr %0, align 8
  %9 = getelementptr inbounds i8, ptr %3, i64 4
  %10 = load i32, ptr %9, align 4
  %11 = sext i32 %10 to i64
  %12 = getelementptr [64 x i64], ptr @the_threads, i64 0, i64 %11
  store i64 %8, ptr %12, align 8
  br label %13

13:
  ret i32 %5
}

declare i32 @sigfillset(ptr noundef) #6

declare i32 @pthread_sigmask(i32 noundef, ptr noundef, ptr noundef) #6

declare i32 @sched_getcpu() #6

define internal i32 @get_affinity(i32 noundef %0, i64 noundef %1, ptr noundef %2) #2 {
  %4 = load i64, ptr getelementptr inbounds (i8, ptr @smelt_tables, i64 32), align 8
  %5 = sext i32 %0 to i64
  %6 = tail call i64 (i64, ...) @syscall(i64 noundef %4, i64 noundef %5, i64 noundef %1, ptr noundef %2) #19
  %7 = trunc i64 %6 to i32
  ret i32 %7
}

define internal i32 @set_affinity(i32 noundef %0, i64 noundef %1, ptr noundef %2) #2 {
  %4 = load i64, ptr getelementptr inbounds (i8, ptr @smelt_tables, i64 40), align 8
  %5 = sext i32 %0 to i64
  %6 = tail call i64 (i64, ...) @syscall(i64 noundef %4, i64 noundef %5, i64 noundef %1, ptr noundef %2) #19
  %7 = trunc i64 %6 to i32
  ret i32 %7
}

define internal noalias noundef ptr @no_value(i64 %0) #0 {
  ret ptr null
}

define internal noundef i32 @keep_no_value(i64 %0, ptr nocapture readnone %1) #0 {
  ret i32 0
}

declare i32 @pthread_create(ptr noundef, ptr noundef, ptr noundef, ptr noundef) local_unnamed_addr #6

declare hidden void @smelt_wake(ptr noundef) local_unnamed_addr #6

declare i32 @pthread_join(i64 noundef, ptr noundef) local_unnamed_addr #6

define internal fastcc noundef i32 @check_call(ptr noundef readonly %0, ptr noundef readnone %1, i32 noundef %2, ptr noundef readnone %3, i32 noundef %4, ptr noundef %5) unnamed_addr #4 {
  %7 = icmp eq ptr %0, null
  br i1 %7, label %8, label %10

8:
  %9 = tail call fastcc i32 @fail(ptr noundef %5, i32 noundef 1, ptr noundef nonnull @.str.11) #17
  br label %39

10:
  %11 = load ptr, ptr %0, align 8
  %12 = sext i32 %2 to i64
  %13 = getelementptr inbounds i8, ptr %11, i64 48
  %14 = load i64, ptr %13, align 8
  %15 = icmp eq i64 %14, %12
  %16 = sext i32 %4 to i64
  br i1 %15, label %17, label %21

17:
  %18 = getelementptr inbounds i8, ptr %11, i64 56
  %19 = load i64, ptr %18, align 8
  %20 = icmp eq i64 %19, %16
  br i1 %20, label %29, label %21

21:
  %22 = getelementptr inbounds i8, ptr %11, i64 8
  %23 = load i64, ptr %22, align 8
  %24 = getelementptr i64, ptr @smelt_tables, i64 %23
  %25 = tail call fastcc i32 @fail(ptr noundef %5, i32 noundef 1, ptr noundef %24) #17
  tail call fastcc void @say(ptr noundef %5, ptr noundef nonnull @.str.12) #17
  %26 = load i64, ptr %13, align 8
  tail call fastcc void @say_number(ptr noundef %5, i64 noundef %26) #17
  tail call fastcc void @say(ptr noundef %5, ptr noundef nonnull @.str.13) #17
  %27 = getelementptr inbounds i8, ptr %11, i64 56
  %28 = load i64, ptr %27, align 8
  tail call fastcc void @say_number(ptr noundef %5, i64 noundef %28) #17
  tail call fastcc void @say(ptr noundef %5, ptr noundef nonnull @.str.14) #17
  tail call fastcc void @say_number(ptr noundef %5, i64 noundef %12) #17
  tail call fastcc void @say(ptr noundef %5, ptr noundef nonnull @.str.15) #17
  tail call fastcc void @say_number(ptr noundef %5, i64 noundef %16) #17
  br label %39

29:
  %30 = icmp eq i32 %2, 0
  %31 = icmp ne ptr %1, null
  %32 = or i1 %31, %30
  br i1 %32, label %33, label %37

33:
  %34 = icmp eq i32 %4, 0
  %35 = icmp ne ptr %3, null
  %36 = or i1 %35, %34
  br i1 %36, label %39, label %37

37:
  %38 = tail call fastcc i32 @fail(ptr noundef %5, i32 noundef 1, ptr noundef nonnull @.str.16) #17
  br label %39

39:
  %40 = phi i32 [ 1, %8 ], [ 1, %21 ], [ 1, %37 ], [ 0, %33 ]
  ret i32 %40
}

define internal fastcc i32 @call_with_parts(ptr nocapture noundef %0, ptr nocapture noundef readonly %1, ptr nocapture noundef %2, i1 noundef zeroext %3, ptr noundef %4) unnamed_addr #5 {
  %6 = alloca ptr, align 8
  %7 = load ptr, ptr %0, align 8
  %8 = getelementptr inbounds i8, ptr %7, i64 64
  %9 = load i64, ptr %8, align 8
  %10 = getelementptr i64, ptr @smelt_tables, i64 %9
  %11 = getelementptr inbounds i8, ptr %7, i64 72
  %12 = load i64, ptr %11, align 8
  %13 = getelementptr i64, ptr @smelt_tables, i64 %12
  %14 = getelementptr inbounds i8, ptr %7, i64 32
  %15 = load i64, ptr %14, align 8
  %16 = getelementptr inbounds i8, ptr %7, i64 40
  %17 = load i64, ptr %16, align 8
  %18 = add i64 %17, %15
  %19 = mul i64 %18, 80
  %20 = getelementptr inbounds i8, ptr %0, i64 24
  %21 = load ptr, ptr %20, align 8
  %22 = add i64 %19, 64
  %23 = getelementptr inbounds i8, ptr %0, i64 40
  %24 = load ptr, ptr %23, align 8
  %25 = tail call ptr %21(i64 noundef %22, i64 noundef 64, ptr noundef %24) #19
  call void @llvm.lifetime.start.p0(i64 8, ptr nonnull %6) #18
  %26 = icmp eq ptr %25, null
  br i1 %26, label %27, label %28

27:
  tail call fastcc void @no_memory(ptr noundef %4, i64 noundef %19) #17
  br label %98

28:
  %29 = load i64, ptr %14, align 8
  %30 = getelementptr %struct.smelt_tensor, ptr %25, i64 %29
  %31 = tail call fastcc i64 @split(ptr noundef %10, i64 noundef %29, ptr noundef %1, ptr noundef nonnull %25) #17
  %32 = load i64, ptr %16, align 8
  %33 = tail call fastcc i64 @split(ptr noundef %13, i64 noundef %32, ptr noundef %2, ptr noundef %30) #17
  %34 = add i64 %33, %31
  br i1 %3, label %62, label %35

35:
  %36 = tail call fastcc i32 @find_shapes(ptr noundef nonnull %0, ptr noundef nonnull %25, ptr noundef %30, ptr noundef %4) #17
  %37 = icmp eq i32 %36, 0
  br i1 %37, label %38, label %76

38:
  %39 = load i64, ptr %16, align 8
  %40 = icmp sgt i64 %39, 0
  br i1 %40, label %41, label %93

41:
  %42 = phi i64 [ %58, %56 ], [ 0, %38 ]
  %43 = phi i64 [ %59, %56 ], [ 0, %38 ]
  %44 = getelementptr %struct.smelt_tensor, ptr %2, i64 %43
  %45 = load ptr, ptr %44, align 8
  %46 = getelementptr %struct.smelt_tensor, ptr %30, i64 %42
  tail call void @llvm.memcpy.p0.p0.i64(ptr noundef nonnull align 8 dereferenceable(80) %44, ptr noundef nonnull align 8 dereferenceable(80) %46, i64 80, i1 false)
  store ptr %45, ptr %44, align 8
  %47 = getelementptr i64, ptr %13, i64 %42
  %48 = load i64, ptr %47, align 8
  %49 = icmp eq i64 %48, 0
  br i1 %49, label %56, label %50

50:
  %51 = getelementptr inbounds i8, ptr %46, i64 8
  %52 = load i32, ptr %51, align 8
  %53 = icmp eq i32 %52, 11
  %54 = select i1 %53, i32 13, i32 14
  %55 = getelementptr inbounds i8, ptr %44, i64 8
  store i32 %54, ptr %55, align 8
  br label %56

56:
  %57 = phi i64 [ 2, %50 ], [ 1, %41 ]
  %58 = add i64 %57, %42
  %59 = add i64 %43, 1
  %60 = load i64, ptr %16, align 8
  %61 = icmp slt i64 %58, %60
  br i1 %61, label %41, label %93

62:
  %63 = load ptr, ptr %20, align 8
  %64 = add i64 %34, 64
  %65 = load ptr, ptr %23, align 8
  %66 = tail call ptr %63(i64 noundef %64, i64 noundef 64, ptr noundef %65) #19
  store ptr %66, ptr %6, align 8
  %67 = icmp eq ptr %66, null
  br i1 %67, label %68, label %69

68:
  tail call fastcc void @no_memory(ptr noundef %4, i64 noundef %34) #17
  br label %93

69:
  %70 = load i64, ptr %14, align 8
  call fastcc void @place_parts(ptr noundef %10, i64 noundef %70, ptr noundef %1, ptr noundef nonnull %25, ptr noundef nonnull %6, i1 noundef zeroext true, i1 noundef zeroext false) #17
  %71 = load i64, ptr %16, align 8
  call fastcc void @place_parts(ptr noundef %13, i64 noundef %71, ptr noundef %2, ptr noundef %30, ptr noundef nonnull %6, i1 noundef zeroext false, i1 noundef zeroext false) #17
  %72 = tail call fastcc i32 @run_arrays(ptr noundef nonnull %0, ptr noundef nonnull %25, ptr noundef %30, ptr noundef %4) #17
  %73 = icmp eq i32 %72, 0
  br i1 %73, label %74, label %76

74:
  %75 = load i64, ptr %16, align 8
  call fastcc void @place_parts(ptr noundef %13, i64 noundef %75, ptr noundef %2, ptr noundef %30, ptr noundef nonnull %6, i1 noundef zeroext false, i1 noundef zeroext true) #17
  br label %87

76:
  %77 = phi ptr [ %66, %69 ], [ null, %35 ]
  %78 = phi i32 [ %72, %69 ], [ %36, %35 ]
  %79 = and i32 %78, -2
  %80 = icmp eq i32 %79, 2
  br i1 %80, label %81, label %85

81:
  %82 = getelementptr inbounds i8, ptr %7, i64 48
  %83 = load i64, ptr %82, align 8
  %84 = tail call fastcc i32 @say_call(ptr noundef nonnull %0, i32 noundef %78, ptr noundef %1, i64 noundef %83, ptr noundef %4) #17
  br label %85

85:
  %86 = icmp eq ptr %77, null
  br i1 %86, label %93, label %87

87:
  %88 = phi ptr [ %66, %74 ], [ %77, %85 ]
  %89 = phi i32 [ 0, %74 ], [ %78, %85 ]
  %90 = getelementptr inbounds i8, ptr %0, i64 32
  %91 = load ptr, ptr %90, align 8
  %92 = load ptr, ptr %23, align 8
  tail call void %91(ptr noundef nonnull %88, ptr noundef %92) #19
  br label %93

93:
  %94 = phi i32 [ %89, %87 ], [ %78, %85 ], [ 5, %68 ], [ 0, %38 ], [ 0, %56 ]
  %95 = getelementptr inbounds i8, ptr %0, i64 32
  %96 = load ptr, ptr %95, align 8
  %97 = load ptr, ptr %23, align 8
  tail call void %96(ptr noundef nonnull %25, ptr noundef %97) #19
  br label %98

98:
  %99 = phi i32 [ %94, %93 ], [ 5, %27 ]
  call void @llvm.lifetime.end.p0(i64 8, ptr nonnull %6) #18
  ret i32 %99
}

define internal fastcc i32 @run_arrays(ptr nocapture noundef %0, ptr nocapture noundef readonly %1, ptr nocapture noundef readonly %2, ptr noundef %3) unnamed_addr #5 {
  %5 = load ptr, ptr %0, align 8
  %6 = tail call fastcc i32 @check_numbers(ptr noundef nonnull %0, ptr noundef %1, ptr noundef %3) #17
  %7 = icmp eq i32 %6, 0
  br i1 %7, label %8, label %100

8:
  %9 = tail call fastcc ptr @take_workspace(ptr noundef nonnull %0) #17
  %10 = icmp eq ptr %9, null
  br i1 %10, label %11, label %12

11:
  tail call fastcc void @no_memory(ptr noundef %3, i64 noundef 136) #17
  br label %100

12:
  %13 = tail call fastcc i32 @match(ptr noundef nonnull %0, ptr noundef nonnull %9, ptr noundef %1, ptr noundef %3) #17
  %14 = icmp eq i32 %13, 0
  br i1 %14, label %15, label %88

15:
  %16 = tail call fastcc i32 @check_memory(ptr noundef nonnull %0, ptr noundef nonnull %9, ptr noundef %1, ptr noundef %2, ptr noundef %3) #17
  %17 = icmp eq i32 %16, 0
  br i1 %17, label %18, label %88

18:
  %19 = getelementptr inbounds i8, ptr %9, i64 8
  %20 = load ptr, ptr %19, align 8
  %21 = icmp eq ptr %20, null
  br i1 %21, label %22, label %27

22:
  %23 = tail call fastcc i32 @prepare(ptr noundef nonnull %0, ptr noundef nonnull %9, ptr noundef %3) #17
  %24 = icmp eq i32 %23, 0
  br i1 %24, label %25, label %88

25:
  %26 = load ptr, ptr %19, align 8
  br label %27

27:
  %28 = phi ptr [ %26, %25 ], [ %20, %18 ]
  %29 = getelementptr inbounds i8, ptr %28, i64 32
  %30 = load i64, ptr %29, align 8
  %31 = getelementptr i64, ptr @smelt_tables, i64 %30
  %32 = getelementptr inbounds i8, ptr %5, i64 32
  %33 = load i64, ptr %32, align 8
  %34 = icmp sgt i64 %33, 0
  br i1 %34, label %35, label %37

35:
  %36 = getelementptr inbounds i8, ptr %9, i64 80
  br label %43

37:
  %38 = getelementptr inbounds i8, ptr %5, i64 40
  %39 = load i64, ptr %38, align 8
  %40 = icmp sgt i64 %39, 0
  br i1 %40, label %41, label %52

41:
  %42 = getelementptr inbounds i8, ptr %9, i64 80
  br label %57

43:
  %44 = phi i64 [ 0, %35 ], [ %49, %43 ]
  %45 = getelementptr %struct.smelt_tensor, ptr %1, i64 %44
  %46 = load ptr, ptr %45, align 8
  %47 = load ptr, ptr %36, align 8
  %48 = getelementptr ptr, ptr %47, i64 %44
  store ptr %46, ptr %48, align 8
  %49 = add nuw nsw i64 %44, 1
  %50 = load i64, ptr %32, align 8
  %51 = icmp slt i64 %49, %50
  br i1 %51, label %43, label %37

52:
  %53 = load ptr, ptr %19, align 8
  %54 = getelementptr inbounds i8, ptr %53, i64 56
  %55 = load i64, ptr %54, align 8
  %56 = icmp slt i64 %55, 0
  br i1 %56, label %74, label %68

57:
  %58 = phi i64 [ 0, %41 ], [ %65, %57 ]
  %59 = getelementptr %struct.smelt_tensor, ptr %2, i64 %58
  %60 = load ptr, ptr %59, align 8
  %61 = load ptr, ptr %42, align 8
  %62 = load i64, ptr %32, align 8
  %63 = getelementptr ptr, ptr %61, i64 %62
  %64 = getelementptr ptr, ptr %63, i64 %58
  store ptr %60, ptr %64, align 8
  %65 = add nuw nsw i64 %58, 1
  %66 = load i64, ptr %38, align 8
  %67 = icmp slt i64 %65, %66
  br i1 %67, label %57, label %52

68:
  %69 = getelementptr inbounds i8, ptr %9, i64 88
  %70 = load ptr, ptr %69, align 8
  %71 = tail call fastcc ptr @address_of(ptr noundef nonnull %9, ptr noundef %31, i64 noundef %55, ptr noundef %70) #17
  %72 = icmp eq ptr %71, null
  br i1 %72, label %74, label %73

73:
  store i8 0, ptr %71, align 1
  br label %74

74:
  %75 = phi i1 [ true, %73 ], [ false, %68 ], [ false, %52 ]
  %76 = phi ptr [ %71, %73 ], [ null, %68 ], [ null, %52 ]
  %77 = getelementptr inbounds i8, ptr %9, i64 88
  %78 = load ptr, ptr %77, align 8
  %79 = tail call fastcc i32 @run_body(ptr noundef nonnull %0, ptr noundef nonnull %9, ptr noundef %31, ptr noundef %78, ptr noundef %3) #17
  %80 = icmp eq i32 %79, 0
  %81 = and i1 %75, %80
  br i1 %81, label %82, label %87

82:
  %83 = load i8, ptr %76, align 1
  %84 = icmp eq i8 %83, 0
  br i1 %84, label %94, label %85

85:
  %86 = tail call fastcc i32 @fail(ptr noundef %3, i32 noundef 4, ptr noundef nonnull @.str.23) #17
  br label %88

87:
  br i1 %80, label %94, label %88

88:
  %89 = phi i32 [ 4, %85 ], [ %79, %87 ], [ %23, %22 ], [ %16, %15 ], [ %13, %12 ]
  %90 = getelementptr inbounds i8, ptr %0, i64 48
  %91 = ptrtoint ptr %9 to i64
  %92 = atomicrmw xchg ptr %90, i64 %91 seq_cst, align 8
  %93 = inttoptr i64 %92 to ptr
  tail call fastcc void @free_workspace(ptr noundef nonnull %0, ptr noundef %93) #17
  br label %100

94:
  tail call fastcc void @copy_results(ptr noundef nonnull %0, ptr noundef nonnull %9, ptr noundef %1, ptr noundef %2) #17
  %95 = getelementptr inbounds i8, ptr %0, i64 48
  %96 = ptrtoint ptr %9 to i64
  %97 = atomicrmw xchg ptr %95, i64 %96 seq_cst, align 8
  %98 = inttoptr i64 %97 to ptr
  tail call fastcc void @free_workspace(ptr noundef nonnull %0, ptr noundef %98) #17
  %99 = tail call fastcc i32 @well(ptr noundef %3) #17
  br label %100

100:
  %101 = phi i32 [ 1, %4 ], [ 5, %11 ], [ %99, %94 ], [ %89, %88 ]
  ret i32 %101
}

define internal fastcc i32 @find_shapes(ptr nocapture noundef %0, ptr nocapture noundef readonly %1, ptr nocapture noundef writeonly %2, ptr noundef %3) unnamed_addr #5 {
  %5 = tail call fastcc i32 @check_numbers(ptr noundef %0, ptr noundef %1, ptr noundef %3) #17
  %6 = icmp eq i32 %5, 0
  br i1 %6, label %7, label %43

7:
  %8 = tail call fastcc ptr @take_workspace(ptr noundef %0) #17
  %9 = icmp eq ptr %8, null
  br i1 %9, label %10, label %11

10:
  tail call fastcc void @no_memory(ptr noundef %3, i64 noundef 136) #17
  br label %43

11:
  %12 = tail call fastcc i32 @match(ptr noundef %0, ptr noundef nonnull %8, ptr noundef %1, ptr noundef %3) #17
  %13 = icmp eq i32 %12, 0
  br i1 %13, label %14, label %32

14:
  %15 = load ptr, ptr %0, align 8
  %16 = getelementptr inbounds i8, ptr %15, i64 40
  %17 = load i64, ptr %16, align 8
  %18 = icmp sgt i64 %17, 0
  br i1 %18, label %19, label %37

19:
  %20 = phi i64 [ %27, %19 ], [ 0, %14 ]
  %21 = load ptr, ptr %8, align 8
  %22 = getelementptr inbounds i8, ptr %21, i64 32
  %23 = load i64, ptr %22, align 8
  %24 = getelementptr i64, ptr @smelt_tables, i64 %23
  %25 = getelementptr %struct.lib_result, ptr %24, i64 %20
  %26 = getelementptr %struct.smelt_tensor, ptr %2, i64 %20
  tail call fastcc void @describe(ptr noundef nonnull %8, ptr noundef %25, ptr noundef %26) #17
  %27 = add nuw nsw i64 %20, 1
  %28 = load ptr, ptr %0, align 8
  %29 = getelementptr inbounds i8, ptr %28, i64 40
  %30 = load i64, ptr %29, align 8
  %31 = icmp slt i64 %27, %30
  br i1 %31, label %19, label %37

32:
  %33 = getelementptr inbounds i8, ptr %0, i64 48
  %34 = ptrtoint ptr %8 to i64
  %35 = atomicrmw xchg ptr %33, i64 %34 seq_cst, align 8
  %36 = inttoptr i64 %35 to ptr
  tail call fastcc void @free_workspace(ptr noundef %0, ptr noundef %36) #17
  br label %43

37:
  %38 = getelementptr inbounds i8, ptr %0, i64 48
  %39 = ptrtoint ptr %8 to i64
  %40 = atomicrmw xchg ptr %38, i64 %39 seq_cst, align 8
  %41 = inttoptr i64 %40 to ptr
  tail call fastcc void @free_workspace(ptr noundef nonnull %0, ptr noundef %41) #17
  %42 = tail call fastcc i32 @well(ptr noundef %3) #17
  br label %43

43:
  %44 = phi i32 [ %5, %4 ], [ 5, %10 ], [ %42, %37 ], [ %12, %32 ]
  ret i32 %44
}

define internal fastcc i64 @split(ptr nocapture noundef readonly %0, i64 noundef %1, ptr nocapture noundef readonly %2, ptr nocapture noundef %3) unnamed_addr #9 {
  %5 = icmp sgt i64 %1, 0
  br i1 %5, label %8, label %6

6:
  %7 = phi i64 [ 0, %4 ], [ %50, %48 ]
  ret i64 %7

8:
  %9 = phi ptr [ %52, %48 ], [ %2, %4 ]
  %10 = phi i64 [ %50, %48 ], [ 0, %4 ]
  %11 = phi i64 [ %51, %48 ], [ 0, %4 ]
  %12 = getelementptr %struct.smelt_tensor, ptr %3, i64 %11
  tail call void @llvm.memcpy.p0.p0.i64(ptr noundef nonnull align 8 dereferenceable(80) %12, ptr noundef nonnull align 8 dereferenceable(80) %9, i64 80, i1 false)
  %13 = getelementptr i64, ptr %0, i64 %11
  %14 = load i64, ptr %13, align 8
  %15 = icmp eq i64 %14, 0
  br i1 %15, label %48, label %16

16:
  %17 = getelementptr inbounds i8, ptr %9, i64 8
  %18 = load i32, ptr %17, align 8
  %19 = add i32 %18, -13
  %20 = icmp ult i32 %19, 2
  br i1 %20, label %21, label %36

21:
  %22 = getelementptr inbounds i8, ptr %9, i64 12
  %23 = load i32, ptr %22, align 4
  %24 = icmp ult i32 %23, 9
  br i1 %24, label %25, label %36

25:
  %26 = icmp eq i32 %18, 13
  %27 = select i1 %26, i32 11, i32 12
  %28 = getelementptr inbounds i8, ptr %12, i64 8
  store i32 %27, ptr %28, align 8
  %29 = getelementptr inbounds i8, ptr %9, i64 16
  %30 = load i32, ptr %22, align 4
  %31 = sext i32 %30 to i64
  %32 = load i32, ptr %17, align 8
  %33 = icmp eq i32 %32, 13
  %34 = select i1 %33, i64 8, i64 16
  %35 = tail call fastcc i64 @bytes_of(ptr noundef nonnull %29, i64 noundef %31, i64 noundef %34) #17
  br label %38

36:
  %37 = getelementptr inbounds i8, ptr %12, i64 8
  store i32 -1, ptr %37, align 8
  br label %38

38:
  %39 = phi i64 [ %35, %25 ], [ 0, %36 ]
  %40 = icmp sgt i64 %39, -1
  %41 = icmp ult i64 %10, 4611686018427387904
  %42 = select i1 %40, i1 %41, i1 false
  %43 = add nuw i64 %39, 128
  %44 = select i1 %42, i64 %43, i64 0
  %45 = add i64 %44, %10
  %46 = add nsw i64 %11, 1
  %47 = getelementptr %struct.smelt_tensor, ptr %3, i64 %46
  tail call void @llvm.memcpy.p0.p0.i64(ptr noundef nonnull align 8 dereferenceable(80) %47, ptr noundef nonnull align 8 dereferenceable(80) %12, i64 80, i1 false)
  br label %48

48:
  %49 = phi i64 [ %46, %38 ], [ %11, %8 ]
  %50 = phi i64 [ %45, %38 ], [ %10, %8 ]
  %51 = add i64 %49, 1
  %52 = getelementptr i8, ptr %9, i64 80
  %53 = icmp slt i64 %51, %1
  br i1 %53, label %8, label %6
}

declare void @llvm.memcpy.p0.p0.i64(ptr noalias nocapture writeonly, ptr noalias nocapture readonly, i64, i1 immarg) #10

define internal fastcc void @place_parts(ptr nocapture noundef readonly %0, i64 noundef %1, ptr nocapture noundef readonly %2, ptr nocapture noundef %3, ptr nocapture noundef %4, i1 noundef zeroext %5, i1 noundef zeroext %6) unnamed_addr #9 {
  %8 = icmp sgt i64 %1, 0
  br i1 %8, label %9, label %12

9:
  %10 = xor i1 %5, true
  %11 = xor i1 %6, true
  br label %13

12:
  ret void

13:
  %14 = phi ptr [ %2, %9 ], [ %47, %42 ]
  %15 = phi i64 [ 0, %9 ], [ %46, %42 ]
  %16 = getelementptr inbounds i8, ptr %14, i64 8
  %17 = load i32, ptr %16, align 8
  %18 = icmp eq i32 %17, 13
  %19 = select i1 %18, i64 4, i64 8
  %20 = getelementptr i64, ptr %0, i64 %15
  %21 = load i64, ptr %20, align 8
  %22 = icmp eq i64 %21, 0
  br i1 %22, label %42, label %23

23:
  %24 = getelementptr %struct.smelt_tensor, ptr %3, i64 %15, i32 1
  %25 = load i32, ptr %24, align 8
  %26 = icmp slt i32 %25, 0
  br i1 %26, label %33, label %27

27:
  %28 = getelementptr inbounds i8, ptr %14, i64 16
  %29 = getelementptr inbounds i8, ptr %14, i64 12
  %30 = load i32, ptr %29, align 4
  %31 = sext i32 %30 to i64
  %32 = tail call fastcc i64 @bytes_of(ptr noundef nonnull %28, i64 noundef %31, i64 noundef %19) #17
  br label %33

33:
  %34 = phi i64 [ -1, %23 ], [ %32, %27 ]
  %35 = getelementptr %struct.smelt_tensor, ptr %3, i64 %15
  %36 = select i1 %18, i64 2, i64 3
  %37 = icmp sgt i64 %34, -1
  %38 = add nsw i64 %19, -1
  %39 = add nuw i64 %34, 63
  %40 = and i64 %39, -64
  %41 = shl nuw nsw i64 %19, 1
  br label %49

42:
  %43 = phi i1 [ false, %13 ], [ %76, %74 ]
  %44 = zext i1 %43 to i64
  %45 = add i64 %15, 1
  %46 = add i64 %45, %44
  %47 = getelementptr i8, ptr %14, i64 80
  %48 = icmp slt i64 %46, %1
  br i1 %48, label %13, label %12

49:
  %50 = phi i1 [ true, %33 ], [ false, %74 ]
  %51 = phi i64 [ 0, %33 ], [ 1, %74 ]
  %52 = getelementptr %struct.smelt_tensor, ptr %35, i64 %51
  %53 = load ptr, ptr %14, align 8
  %54 = shl nuw nsw i64 %51, %36
  %55 = getelementptr i8, ptr %53, i64 %54
  %56 = icmp ne ptr %53, null
  %57 = select i1 %56, i1 %37, i1 false
  br i1 %57, label %58, label %74

58:
  %59 = ptrtoint ptr %53 to i64
  %60 = and i64 %38, %59
  %61 = icmp ne i64 %60, 0
  %62 = select i1 %6, i1 true, i1 %61
  br i1 %62, label %66, label %63

63:
  %64 = load ptr, ptr %4, align 8
  store ptr %64, ptr %52, align 8
  %65 = getelementptr i8, ptr %64, i64 %40
  store ptr %65, ptr %4, align 8
  br label %66

66:
  %67 = or i1 %61, %10
  br i1 %67, label %70, label %68

68:
  %69 = load ptr, ptr %52, align 8
  tail call fastcc void @copy_parts(ptr noundef %69, i64 noundef %19, ptr noundef %55, i64 noundef %41, i64 noundef %34, i64 noundef %19) #17
  br label %70

70:
  %71 = or i1 %61, %11
  br i1 %71, label %74, label %72

72:
  %73 = load ptr, ptr %52, align 8
  tail call fastcc void @copy_parts(ptr noundef %55, i64 noundef %41, ptr noundef %73, i64 noundef %19, i64 noundef %34, i64 noundef %19) #17
  br label %74

74:
  %75 = load i64, ptr %20, align 8
  %76 = icmp ne i64 %75, 0
  %77 = and i1 %76, %50
  br i1 %77, label %49, label %42
}

define internal fastcc noundef i32 @say_call(ptr nocapture noundef readonly %0, i32 noundef returned %1, ptr nocapture noundef readonly %2, i64 noundef %3, ptr noundef %4) unnamed_addr #4 {
  %6 = load ptr, ptr %0, align 8
  %7 = getelementptr inbounds i8, ptr %6, i64 8
  %8 = load i64, ptr %7, align 8
  %9 = getelementptr i64, ptr @smelt_tables, i64 %8
  %10 = tail call fastcc i32 @fail(ptr noundef %4, i32 noundef %1, ptr noundef %9) #17
  tail call fastcc void @say(ptr noundef %4, ptr noundef nonnull @.str.17) #17
  %11 = icmp sgt i64 %3, 0
  br i1 %11, label %13, label %12

12:
  ret i32 %1

13:
  %14 = phi i64 [ %18, %13 ], [ 0, %5 ]
  %15 = icmp eq i64 %14, 0
  %16 = select i1 %15, ptr @.str, ptr @.str.5
  tail call fastcc void @say(ptr noundef %4, ptr noundef nonnull %16) #17
  %17 = getelementptr %struct.smelt_tensor, ptr %2, i64 %14
  tail call fastcc void @say_type(ptr noundef %4, ptr noundef %17) #17
  %18 = add nuw nsw i64 %14, 1
  %19 = icmp eq i64 %18, %3
  br i1 %19, label %12, label %13
}

define internal fastcc i64 @bytes_of(ptr nocapture noundef readonly %0, i64 noundef %1, i64 noundef %2) unnamed_addr #11 {
  %4 = icmp sgt i64 %1, 0
  br i1 %4, label %5, label %8

5:
  %6 = load i64, ptr %0, align 8
  %7 = icmp slt i64 %6, 0
  br i1 %7, label %30, label %19

8:
  %9 = icmp ult i64 %2, 4611686018427387904
  %10 = select i1 %9, i64 %2, i64 -1
  br label %36

11:
  %12 = add nuw nsw i64 %22, 1
  %13 = icmp slt i64 %12, %1
  %14 = icmp eq i64 %12, %1
  br i1 %14, label %27, label %15

15:
  %16 = getelementptr i64, ptr %0, i64 %12
  %17 = load i64, ptr %16, align 8
  %18 = icmp slt i64 %17, 0
  br i1 %18, label %27, label %19

19:
  %20 = phi i64 [ %17, %15 ], [ %6, %5 ]
  %21 = phi i64 [ %26, %15 ], [ %2, %5 ]
  %22 = phi i64 [ %12, %15 ], [ 0, %5 ]
  %23 = phi i1 [ %13, %15 ], [ true, %5 ]
  %24 = tail call { i64, i1 } @llvm.smul.with.overflow.i64(i64 %21, i64 %20)
  %25 = extractvalue { i64, i1 } %24, 1
  %26 = extractvalue { i64, i1 } %24, 0
  br i1 %25, label %27, label %11

27:
  %28 = phi i1 [ %13, %15 ], [ %23, %19 ], [ %13, %11 ]
  %29 = freeze i1 %28
  br label %30

30:
  %31 = phi i1 [ true, %5 ], [ %29, %27 ]
  %32 = phi i64 [ %2, %5 ], [ %26, %27 ]
  %33 = icmp ult i64 %32, 4611686018427387904
  %34 = select i1 %33, i64 %32, i64 -1
  %35 = select i1 %31, i64 -1, i64 %34
  br label %36

36:
  %37 = phi i64 [ %10, %8 ], [ %35, %30 ]
  ret i64 %37
}

declare { i64, i1 } @llvm.smul.with.overflow.i64(i64, i64) #12

define internal fastcc void @copy_parts(ptr nocapture noundef writeonly %0, i64 noundef %1, ptr nocapture noundef readonly %2, i64 noundef %3, i64 noundef %4, i64 noundef %5) unnamed_addr #9 {
  %7 = icmp sgt i64 %4, 0
  br i1 %7, label %8, label %10

8:
  %9 = icmp eq i64 %5, 4
  br label %11

10:
  ret void

11:
  %12 = phi i64 [ 0, %8 ], [ %20, %19 ]
  %13 = phi ptr [ %0, %8 ], [ %21, %19 ]
  %14 = phi ptr [ %2, %8 ], [ %22, %19 ]
  br i1 %9, label %15, label %17

15:
  %16 = load i32, ptr %14, align 4
  store i32 %16, ptr %13, align 4
  br label %19

17:
  %18 = load i64, ptr %14, align 8
  store i64 %18, ptr %13, align 8
  br label %19

19:
  %20 = add i64 %12, %5
  %21 = getelementptr i8, ptr %13, i64 %1
  %22 = getelementptr i8, ptr %14, i64 %3
  %23 = icmp slt i64 %20, %4
  br i1 %23, label %11, label %10
}

define internal fastcc void @say_type(ptr noundef %0, ptr nocapture noundef readonly %1) unnamed_addr #4 {
  %3 = getelementptr inbounds i8, ptr %1, i64 8
  %4 = load i32, ptr %3, align 8
  %5 = icmp ult i32 %4, 15
  %6 = mul nuw nsw i32 %4, 6
  %7 = zext nneg i32 %6 to i64
  %8 = getelementptr i8, ptr @DTYPE_NAMES, i64 %7
  %9 = select i1 %5, ptr %8, ptr @.str.18
  tail call fastcc void @say(ptr noundef %0, ptr noundef %9) #17
  tail call fastcc void @say(ptr noundef %0, ptr noundef nonnull @.str.19) #17
  %10 = getelementptr inbounds i8, ptr %1, i64 12
  %11 = load i32, ptr %10, align 4
  %12 = icmp ugt i32 %11, 8
  br i1 %12, label %13, label %17

13:
  tail call fastcc void @say(ptr noundef %0, ptr noundef nonnull @.str.20) #17
  %14 = load i32, ptr %10, align 4
  %15 = sext i32 %14 to i64
  tail call fastcc void @say_number(ptr noundef %0, i64 noundef %15) #17
  %16 = load i32, ptr %10, align 4
  br label %17

17:
  %18 = phi i32 [ %11, %2 ], [ %16, %13 ]
  %19 = add i32 %18, -1
  %20 = icmp ult i32 %19, 8
  br i1 %20, label %21, label %23

21:
  %22 = getelementptr inbounds i8, ptr %1, i64 16
  br label %24

23:
  tail call fastcc void @say(ptr noundef %0, ptr noundef nonnull @.str.22) #17
  ret void

24:
  %25 = phi i64 [ 0, %21 ], [ %30, %24 ]
  %26 = icmp eq i64 %25, 0
  %27 = select i1 %26, ptr @.str, ptr @.str.21
  tail call fastcc void @say(ptr noundef %0, ptr noundef nonnull %27) #17
  %28 = getelementptr [8 x i64], ptr %22, i64 0, i64 %25
  %29 = load i64, ptr %28, align 8
  tail call fastcc void @say_number(ptr noundef %0, i64 noundef %29) #17
  %30 = add nuw nsw i64 %25, 1
  %31 = load i32, ptr %10, align 4
  %32 = sext i32 %31 to i64
  %33 = icmp slt i64 %30, %32
  %34 = icmp slt i32 %31, 9
  %35 = and i1 %33, %34
  br i1 %35, label %24, label %23
}

define internal fastcc i32 @check_numbers(ptr nocapture noundef readonly %0, ptr nocapture noundef readonly %1, ptr noundef %2) unnamed_addr #4 {
  %4 = load ptr, ptr %0, align 8
  %5 = getelementptr inbounds i8, ptr %4, i64 16
  %6 = load i64, ptr %5, align 8
  %7 = getelementptr i64, ptr @smelt_tables, i64 %6
  %8 = load i64, ptr %7, align 8
  %9 = getelementptr i64, ptr @smelt_tables, i64 %8
  %10 = getelementptr inbounds i8, ptr %4, i64 32
  %11 = load i64, ptr %10, align 8
  %12 = icmp sgt i64 %11, 0
  br i1 %12, label %13, label %27

13:
  %14 = phi i64 [ %25, %24 ], [ 0, %3 ]
  %15 = getelementptr %struct.lib_argument, ptr %9, i64 %14, i32 4
  %16 = load i64, ptr %15, align 8
  %17 = icmp eq i64 %16, 0
  br i1 %17, label %24, label %18

18:
  %19 = getelementptr %struct.smelt_tensor, ptr %1, i64 %14
  %20 = load ptr, ptr %19, align 8
  %21 = icmp eq ptr %20, null
  br i1 %21, label %22, label %24

22:
  %23 = tail call fastcc i32 @check_data(ptr noundef nonnull %19, i64 noundef 8, ptr noundef nonnull @.str.24, i64 noundef %14, ptr noundef %2) #17
  br label %27

24:
  %25 = add nuw nsw i64 %14, 1
  %26 = icmp eq i64 %25, %11
  br i1 %26, label %27, label %13

27:
  %28 = phi i32 [ %23, %22 ], [ 0, %3 ], [ 0, %24 ]
  ret i32 %28
}

define internal fastcc ptr @take_workspace(ptr nocapture noundef %0) unnamed_addr #5 {
  %2 = getelementptr inbounds i8, ptr %0, i64 48
  %3 = atomicrmw xchg ptr %2, i64 0 seq_cst, align 8
  %4 = icmp eq i64 %3, 0
  br i1 %4, label %7, label %5

5:
  %6 = inttoptr i64 %3 to ptr
  br label %46

7:
  %8 = load ptr, ptr %0, align 8
  %9 = getelementptr inbounds i8, ptr %8, i64 80
  %10 = load i64, ptr %9, align 8
  %11 = getelementptr inbounds i8, ptr %8, i64 88
  %12 = load i64, ptr %11, align 8
  %13 = add i64 %12, %10
  %14 = getelementptr inbounds i8, ptr %0, i64 24
  %15 = load ptr, ptr %14, align 8
  %16 = shl i64 %13, 3
  %17 = add i64 %16, 136
  %18 = getelementptr inbounds i8, ptr %0, i64 40
  %19 = load ptr, ptr %18, align 8
  %20 = tail call ptr %15(i64 noundef %17, i64 noundef 64, ptr noundef %19) #19
  %21 = icmp eq ptr %20, null
  br i1 %21, label %46, label %22

22:
  store ptr null, ptr %20, align 8
  %23 = getelementptr inbounds i8, ptr %20, i64 8
  store ptr null, ptr %23, align 8
  %24 = getelementptr i8, ptr %20, i64 136
  %25 = getelementptr inbounds i8, ptr %20, i64 16
  store ptr %24, ptr %25, align 8
  %26 = load ptr, ptr %0, align 8
  %27 = getelementptr inbounds i8, ptr %26, i64 80
  %28 = load i64, ptr %27, align 8
  %29 = getelementptr i64, ptr %24, i64 %28
  %30 = getelementptr inbounds i8, ptr %20, i64 24
  store ptr %29, ptr %30, align 8
  %31 = getelementptr inbounds i8, ptr %20, i64 32
  store ptr null, ptr %31, align 8
  %32 = getelementptr inbounds i8, ptr %20, i64 40
  store i64 0, ptr %32, align 8
  %33 = load ptr, ptr %0, align 8
  %34 = getelementptr inbounds i8, ptr %33, i64 80
  %35 = load i64, ptr %34, align 8
  %36 = icmp sgt i64 %35, 0
  br i1 %36, label %37, label %46

37:
  %38 = phi i64 [ %41, %37 ], [ 0, %22 ]
  %39 = load ptr, ptr %25, align 8
  %40 = getelementptr i64, ptr %39, i64 %38
  store i64 0, ptr %40, align 8
  %41 = add nuw nsw i64 %38, 1
  %42 = load ptr, ptr %0, align 8
  %43 = getelementptr inbounds i8, ptr %42, i64 80
  %44 = load i64, ptr %43, align 8
  %45 = icmp slt i64 %41, %44
  br i1 %45, label %37, label %46

46:
  %47 = phi ptr [ %6, %5 ], [ null, %7 ], [ %20, %22 ], [ %20, %37 ]
  ret ptr %47
}

define internal fastcc noundef i32 @match(ptr nocapture noundef readonly %0, ptr nocapture noundef %1, ptr nocapture noundef readonly %2, ptr noundef %3) unnamed_addr #9 {
  %5 = alloca i8, align 1
  %6 = load ptr, ptr %0, align 8
  %7 = getelementptr inbounds i8, ptr %6, i64 16
  %8 = load i64, ptr %7, align 8
  %9 = getelementptr i64, ptr @smelt_tables, i64 %8
  call void @llvm.lifetime.start.p0(i64 1, ptr nonnull %5) #18
  %10 = load ptr, ptr %1, align 8
  %11 = icmp eq ptr %10, null
  br i1 %11, label %23, label %12

12:
  %13 = getelementptr inbounds i8, ptr %6, i64 32
  %14 = load i64, ptr %13, align 8
  %15 = getelementptr inbounds i8, ptr %1, i64 16
  %16 = load ptr, ptr %15, align 8
  %17 = call fastcc zeroext i1 @read_parameters(ptr noundef nonnull %10, i64 noundef %14, ptr noundef %2, ptr noundef %16, ptr noundef nonnull %5) #17
  %18 = load i8, ptr %5, align 1
  %19 = trunc nuw i8 %18 to i1
  %20 = xor i1 %19, true
  %21 = select i1 %20, i1 true, i1 %17
  br i1 %21, label %22, label %61

22:
  store ptr null, ptr %1, align 8
  br label %23

23:
  %24 = getelementptr inbounds i8, ptr %1, i64 8
  store ptr null, ptr %24, align 8
  %25 = getelementptr inbounds i8, ptr %6, i64 24
  %26 = load i64, ptr %25, align 8
  %27 = icmp sgt i64 %26, 0
  br i1 %27, label %28, label %59

28:
  %29 = getelementptr inbounds i8, ptr %6, i64 32
  %30 = getelementptr inbounds i8, ptr %1, i64 16
  %31 = getelementptr inbounds i8, ptr %1, i64 24
  br label %32

32:
  %33 = phi i64 [ 0, %28 ], [ %56, %55 ]
  %34 = getelementptr %struct.lib_recording, ptr %9, i64 %33
  %35 = load i64, ptr %29, align 8
  %36 = load ptr, ptr %30, align 8
  %37 = call fastcc zeroext i1 @read_parameters(ptr noundef %34, i64 noundef %35, ptr noundef %2, ptr noundef %36, ptr noundef nonnull %5) #17
  %38 = load i8, ptr %5, align 1
  %39 = trunc nuw i8 %38 to i1
  br i1 %39, label %40, label %55

40:
  %41 = getelementptr inbounds i8, ptr %34, i64 8
  %42 = load i64, ptr %41, align 8
  %43 = getelementptr i64, ptr @smelt_tables, i64 %42
  %44 = getelementptr inbounds i8, ptr %34, i64 16
  %45 = load i64, ptr %44, align 8
  %46 = load ptr, ptr %30, align 8
  %47 = load ptr, ptr %31, align 8
  tail call fastcc void @compute(ptr noundef %43, i64 noundef 0, i64 noundef %45, ptr noundef %46, ptr noundef %47) #17
  %48 = load ptr, ptr %31, align 8
  %49 = getelementptr inbounds i8, ptr %34, i64 24
  %50 = load i64, ptr %49, align 8
  %51 = getelementptr i64, ptr %48, i64 %50
  %52 = load i64, ptr %51, align 8
  %53 = icmp eq i64 %52, 0
  br i1 %53, label %55, label %54

54:
  store ptr %34, ptr %1, align 8
  br label %61

55:
  %56 = add nuw nsw i64 %33, 1
  %57 = load i64, ptr %25, align 8
  %58 = icmp slt i64 %56, %57
  br i1 %58, label %32, label %59

59:
  %60 = tail call fastcc i32 @refuse(ptr noundef nonnull %0, ptr noundef %2, ptr noundef %3) #17
  br label %61

61:
  %62 = phi i32 [ %60, %59 ], [ 0, %54 ], [ 0, %12 ]
  call void @llvm.lifetime.end.p0(i64 1, ptr nonnull %5) #18
  ret i32 %62
}

define internal fastcc i32 @check_memory(ptr nocapture noundef readonly %0, ptr nocapture noundef readonly %1, ptr nocapture noundef readonly %2, ptr nocapture noundef readonly %3, ptr noundef %4) unnamed_addr #4 {
  %6 = alloca %struct.smelt_tensor, align 8
  %7 = load ptr, ptr %0, align 8
  %8 = load ptr, ptr %1, align 8
  %9 = load i64, ptr %8, align 8
  %10 = getelementptr i64, ptr @smelt_tables, i64 %9
  %11 = getelementptr inbounds i8, ptr %8, i64 32
  %12 = load i64, ptr %11, align 8
  %13 = getelementptr i64, ptr @smelt_tables, i64 %12
  call void @llvm.lifetime.start.p0(i64 80, ptr nonnull %6) #18
  %14 = getelementptr inbounds i8, ptr %7, i64 32
  %15 = load i64, ptr %14, align 8
  %16 = icmp sgt i64 %15, 0
  br i1 %16, label %29, label %21

17:
  %18 = add nuw nsw i64 %30, 1
  %19 = load i64, ptr %14, align 8
  %20 = icmp slt i64 %18, %19
  br i1 %20, label %29, label %21

21:
  %22 = getelementptr inbounds i8, ptr %7, i64 40
  %23 = load i64, ptr %22, align 8
  %24 = icmp sgt i64 %23, 0
  br i1 %24, label %25, label %163

25:
  %26 = getelementptr inbounds i8, ptr %6, i64 8
  %27 = getelementptr inbounds i8, ptr %6, i64 12
  %28 = getelementptr inbounds i8, ptr %6, i64 16
  br label %36

29:
  %30 = phi i64 [ %18, %17 ], [ 0, %5 ]
  %31 = getelementptr %struct.smelt_tensor, ptr %2, i64 %30
  %32 = getelementptr %struct.lib_argument, ptr %10, i64 %30, i32 1
  %33 = load i64, ptr %32, align 8
  %34 = tail call fastcc i32 @check_data(ptr noundef %31, i64 noundef %33, ptr noundef nonnull @.str.24, i64 noundef %30, ptr noundef %4) #17
  %35 = icmp eq i32 %34, 0
  br i1 %35, label %17, label %163

36:
  %37 = phi i64 [ 0, %25 ], [ %160, %159 ]
  %38 = getelementptr %struct.smelt_tensor, ptr %3, i64 %37
  %39 = getelementptr %struct.lib_result, ptr %13, i64 %37
  call fastcc void @describe(ptr noundef nonnull %1, ptr noundef %39, ptr noundef nonnull %6) #17
  %40 = getelementptr inbounds i8, ptr %38, i64 8
  %41 = load i32, ptr %40, align 8
  %42 = load i32, ptr %26, align 8
  %43 = icmp eq i32 %41, %42
  %44 = load i32, ptr %27, align 4
  br i1 %43, label %45, label %66

45:
  %46 = getelementptr inbounds i8, ptr %38, i64 12
  %47 = load i32, ptr %46, align 4
  %48 = icmp eq i32 %47, %44
  %49 = icmp sgt i32 %44, 0
  %50 = and i1 %48, %49
  br i1 %50, label %51, label %54

51:
  %52 = getelementptr inbounds i8, ptr %38, i64 16
  %53 = zext nneg i32 %44 to i64
  br label %56

54:
  %55 = phi i1 [ %48, %45 ], [ %62, %56 ]
  br i1 %55, label %68, label %66

56:
  %57 = phi i64 [ 0, %51 ], [ %63, %56 ]
  %58 = getelementptr [8 x i64], ptr %52, i64 0, i64 %57
  %59 = load i64, ptr %58, align 8
  %60 = getelementptr [8 x i64], ptr %28, i64 0, i64 %57
  %61 = load i64, ptr %60, align 8
  %62 = icmp eq i64 %59, %61
  %63 = add nuw nsw i64 %57, 1
  %64 = icmp ult i64 %63, %53
  %65 = select i1 %62, i1 %64, i1 false
  br i1 %65, label %56, label %54

66:
  %67 = tail call fastcc i32 @fail(ptr noundef %4, i32 noundef 1, ptr noundef nonnull @.str.28) #17
  tail call fastcc void @say_number(ptr noundef %4, i64 noundef %37) #17
  tail call fastcc void @say(ptr noundef %4, ptr noundef nonnull @.str.29) #17
  call fastcc void @say_type(ptr noundef %4, ptr noundef nonnull %6) #17
  tail call fastcc void @say(ptr noundef %4, ptr noundef nonnull @.str.30) #17
  tail call fastcc void @say_type(ptr noundef %4, ptr noundef %38) #17
  br label %163

68:
  %69 = getelementptr inbounds i8, ptr %39, i64 24
  %70 = load i64, ptr %69, align 8
  %71 = tail call fastcc i32 @check_data(ptr noundef %38, i64 noundef %70, ptr noundef nonnull @.str.28, i64 noundef %37, ptr noundef %4) #17
  %72 = icmp eq i32 %71, 0
  br i1 %72, label %73, label %163

73:
  %74 = getelementptr inbounds i8, ptr %38, i64 16
  %75 = getelementptr inbounds i8, ptr %38, i64 12
  %76 = load i32, ptr %75, align 4
  %77 = sext i32 %76 to i64
  %78 = tail call fastcc i64 @bytes_of(ptr noundef nonnull %74, i64 noundef %77, i64 noundef %70) #17
  %79 = load i64, ptr %14, align 8
  %80 = icmp sgt i64 %79, 0
  br i1 %80, label %81, label %85

81:
  %82 = icmp sgt i64 %78, 0
  br label %90

83:
  %84 = zext i1 %118 to i8
  br label %85

85:
  %86 = phi i8 [ 1, %73 ], [ %84, %83 ]
  %87 = icmp eq i64 %37, 0
  br i1 %87, label %121, label %88

88:
  %89 = icmp sgt i64 %78, 0
  br label %124

90:
  %91 = phi i64 [ 0, %81 ], [ %119, %117 ]
  %92 = phi i1 [ true, %81 ], [ %118, %117 ]
  br i1 %92, label %93, label %117

93:
  %94 = getelementptr %struct.smelt_tensor, ptr %2, i64 %91
  %95 = getelementptr inbounds i8, ptr %94, i64 16
  %96 = getelementptr inbounds i8, ptr %94, i64 12
  %97 = load i32, ptr %96, align 4
  %98 = sext i32 %97 to i64
  %99 = getelementptr %struct.lib_argument, ptr %10, i64 %91, i32 1
  %100 = load i64, ptr %99, align 8
  %101 = tail call fastcc i64 @bytes_of(ptr noundef nonnull %95, i64 noundef %98, i64 noundef %100) #17
  %102 = load ptr, ptr %38, align 8
  %103 = ptrtoint ptr %102 to i64
  %104 = load ptr, ptr %94, align 8
  %105 = ptrtoint ptr %104 to i64
  %106 = icmp sgt i64 %101, 0
  %107 = and i1 %82, %106
  %108 = add i64 %101, %105
  %109 = icmp ugt i64 %108, %103
  %110 = select i1 %107, i1 %109, i1 false
  br i1 %110, label %111, label %114

111:
  %112 = add i64 %78, %103
  %113 = icmp ugt i64 %112, %105
  br label %114

114:
  %115 = phi i1 [ false, %93 ], [ %113, %111 ]
  %116 = xor i1 %115, true
  br label %117

117:
  %118 = phi i1 [ false, %90 ], [ %116, %114 ]
  %119 = add nuw nsw i64 %91, 1
  %120 = icmp eq i64 %119, %79
  br i1 %120, label %83, label %90

121:
  %122 = phi i8 [ %86, %85 ], [ %154, %152 ]
  %123 = trunc nuw i8 %122 to i1
  br i1 %123, label %159, label %157

124:
  %125 = phi i64 [ 0, %88 ], [ %155, %152 ]
  %126 = phi i8 [ %86, %88 ], [ %154, %152 ]
  %127 = trunc nuw i8 %126 to i1
  br i1 %127, label %128, label %152

128:
  %129 = getelementptr %struct.smelt_tensor, ptr %3, i64 %125
  %130 = getelementptr inbounds i8, ptr %129, i64 16
  %131 = getelementptr inbounds i8, ptr %129, i64 12
  %132 = load i32, ptr %131, align 4
  %133 = sext i32 %132 to i64
  %134 = getelementptr %struct.lib_result, ptr %13, i64 %125, i32 3
  %135 = load i64, ptr %134, align 8
  %136 = tail call fastcc i64 @bytes_of(ptr noundef nonnull %130, i64 noundef %133, i64 noundef %135) #17
  %137 = load ptr, ptr %38, align 8
  %138 = ptrtoint ptr %137 to i64
  %139 = load ptr, ptr %129, align 8
  %140 = ptrtoint ptr %139 to i64
  %141 = icmp sgt i64 %136, 0
  %142 = and i1 %89, %141
  %143 = add i64 %136, %140
  %144 = icmp ugt i64 %143, %138
  %145 = select i1 %142, i1 %144, i1 false
  br i1 %145, label %146, label %149

146:
  %147 = add i64 %78, %138
  %148 = icmp ugt i64 %147, %140
  br label %149

149:
  %150 = phi i1 [ false, %128 ], [ %148, %146 ]
  %151 = xor i1 %150, true
  br label %152

152:
  %153 = phi i1 [ false, %124 ], [ %151, %149 ]
  %154 = zext i1 %153 to i8
  %155 = add nuw nsw i64 %125, 1
  %156 = icmp eq i64 %155, %37
  br i1 %156, label %121, label %124

157:
  %158 = tail call fastcc i32 @fail(ptr noundef %4, i32 noundef 1, ptr noundef nonnull @.str.31) #17
  tail call fastcc void @say_number(ptr noundef %4, i64 noundef %37) #17
  tail call fastcc void @say(ptr noundef %4, ptr noundef nonnull @.str.32) #17
  br label %163

159:
  %160 = add nuw nsw i64 %37, 1
  %161 = load i64, ptr %22, align 8
  %162 = icmp slt i64 %160, %161
  br i1 %162, label %36, label %163

163:
  %164 = phi i32 [ 1, %157 ], [ 1, %66 ], [ 0, %21 ], [ %71, %159 ], [ 1, %68 ], [ 1, %29 ]
  call void @llvm.lifetime.end.p0(i64 80, ptr nonnull %6) #18
  ret i32 %164
}

define internal fastcc range(i32 0, 6) i32 @prepare(ptr nocapture noundef readonly %0, ptr noundef %1, ptr noundef %2) unnamed_addr #5 {
  %4 = tail call fastcc ptr @nearest_plan(ptr noundef %0, ptr noundef %1) #17
  %5 = getelementptr inbounds i8, ptr %1, i64 8
  store ptr %4, ptr %5, align 8
  %6 = load ptr, ptr %1, align 8
  %7 = getelementptr inbounds i8, ptr %6, i64 8
  %8 = load i64, ptr %7, align 8
  %9 = getelementptr i64, ptr @smelt_tables, i64 %8
  %10 = getelementptr inbounds i8, ptr %4, i64 32
  %11 = load i64, ptr %10, align 8
  %12 = getelementptr i64, ptr @smelt_tables, i64 %11
  %13 = getelementptr inbounds i8, ptr %6, i64 16
  %14 = load i64, ptr %13, align 8
  %15 = getelementptr inbounds i8, ptr %4, i64 24
  %16 = load i64, ptr %15, align 8
  %17 = getelementptr inbounds i8, ptr %1, i64 16
  %18 = load ptr, ptr %17, align 8
  %19 = getelementptr inbounds i8, ptr %1, i64 24
  %20 = load ptr, ptr %19, align 8
  tail call fastcc void @compute(ptr noundef %9, i64 noundef %14, i64 noundef %16, ptr noundef %18, ptr noundef %20) #17
  %21 = getelementptr inbounds i8, ptr %1, i64 128
  store i64 0, ptr %21, align 8
  %22 = getelementptr inbounds i8, ptr %1, i64 120
  store i64 0, ptr %22, align 8
  %23 = getelementptr inbounds i8, ptr %1, i64 112
  store i64 0, ptr %23, align 8
  %24 = getelementptr inbounds i8, ptr %1, i64 104
  store i64 0, ptr %24, align 8
  %25 = getelementptr inbounds i8, ptr %0, i64 16
  %26 = load i64, ptr %25, align 8
  %27 = tail call fastcc i64 @lay_out(ptr noundef nonnull %1, ptr noundef %12, i64 noundef %26, i1 noundef zeroext false) #17
  %28 = add i64 %27, 63
  %29 = and i64 %28, -64
  %30 = load i64, ptr %24, align 8
  %31 = shl i64 %30, 3
  %32 = add i64 %31, 63
  %33 = and i64 %32, -64
  %34 = load i64, ptr %23, align 8
  %35 = shl i64 %34, 5
  %36 = add i64 %35, 63
  %37 = and i64 %36, -64
  %38 = load i64, ptr %22, align 8
  %39 = shl i64 %38, 5
  %40 = add i64 %39, 63
  %41 = and i64 %40, -64
  %42 = load ptr, ptr %5, align 8
  %43 = getelementptr inbounds i8, ptr %42, i64 40
  %44 = load i64, ptr %43, align 8
  %45 = mul i64 %44, 24
  %46 = add i64 %45, 63
  %47 = and i64 %46, -64
  %48 = getelementptr inbounds i8, ptr %42, i64 48
  %49 = load i64, ptr %48, align 8
  %50 = shl i64 %49, 3
  %51 = add i64 %50, 63
  %52 = and i64 %51, -64
  %53 = load i64, ptr %21, align 8
  %54 = add i64 %53, 63
  %55 = and i64 %54, -64
  %56 = add i64 %33, %29
  %57 = add i64 %56, %37
  %58 = add i64 %57, %41
  %59 = add i64 %58, %47
  %60 = add i64 %59, %52
  %61 = add i64 %60, %55
  %62 = getelementptr inbounds i8, ptr %1, i64 40
  %63 = load i64, ptr %62, align 8
  %64 = icmp sgt i64 %61, %63
  %65 = sdiv i64 %63, 4
  %66 = icmp slt i64 %61, %65
  %67 = or i1 %64, %66
  %68 = getelementptr inbounds i8, ptr %1, i64 32
  %69 = load ptr, ptr %68, align 8
  br i1 %67, label %70, label %91

70:
  %71 = icmp eq ptr %69, null
  br i1 %71, label %77, label %72

72:
  %73 = getelementptr inbounds i8, ptr %0, i64 32
  %74 = load ptr, ptr %73, align 8
  %75 = getelementptr inbounds i8, ptr %0, i64 40
  %76 = load ptr, ptr %75, align 8
  tail call void %74(ptr noundef nonnull %69, ptr noundef %76) #19
  br label %77

77:
  store i64 0, ptr %62, align 8
  %78 = or i64 %61, %28
  %79 = icmp sgt i64 %78, -1
  br i1 %79, label %81, label %80

80:
  store ptr null, ptr %68, align 8
  br label %89

81:
  %82 = getelementptr inbounds i8, ptr %0, i64 24
  %83 = load ptr, ptr %82, align 8
  %84 = add nuw i64 %61, 64
  %85 = getelementptr inbounds i8, ptr %0, i64 40
  %86 = load ptr, ptr %85, align 8
  %87 = tail call ptr %83(i64 noundef %84, i64 noundef 64, ptr noundef %86) #19
  store ptr %87, ptr %68, align 8
  %88 = icmp eq ptr %87, null
  br i1 %88, label %89, label %90

89:
  store ptr null, ptr %5, align 8
  tail call fastcc void @no_memory(ptr noundef %2, i64 noundef %61) #17
  br label %108

90:
  store i64 %61, ptr %62, align 8
  br label %91

91:
  %92 = phi ptr [ %87, %90 ], [ %69, %3 ]
  %93 = getelementptr inbounds i8, ptr %1, i64 48
  store ptr %92, ptr %93, align 8
  %94 = getelementptr i8, ptr %92, i64 %33
  %95 = getelementptr inbounds i8, ptr %1, i64 56
  store ptr %94, ptr %95, align 8
  %96 = getelementptr i8, ptr %94, i64 %37
  %97 = getelementptr inbounds i8, ptr %1, i64 64
  store ptr %96, ptr %97, align 8
  %98 = getelementptr i8, ptr %96, i64 %41
  %99 = getelementptr inbounds i8, ptr %1, i64 72
  store ptr %98, ptr %99, align 8
  %100 = getelementptr i8, ptr %98, i64 %47
  %101 = getelementptr inbounds i8, ptr %1, i64 80
  store ptr %100, ptr %101, align 8
  %102 = getelementptr i8, ptr %100, i64 %52
  %103 = getelementptr inbounds i8, ptr %1, i64 88
  store ptr %102, ptr %103, align 8
  %104 = getelementptr i8, ptr %102, i64 %29
  %105 = getelementptr inbounds i8, ptr %1, i64 96
  store ptr %104, ptr %105, align 8
  store i64 0, ptr %21, align 8
  store i64 0, ptr %22, align 8
  store i64 0, ptr %23, align 8
  store i64 0, ptr %24, align 8
  %106 = load i64, ptr %25, align 8
  %107 = tail call fastcc i64 @lay_out(ptr noundef nonnull %1, ptr noundef %12, i64 noundef %106, i1 noundef zeroext true) #17
  br label %108

108:
  %109 = phi i32 [ 0, %91 ], [ 5, %89 ]
  ret i32 %109
}

define internal fastcc ptr @address_of(ptr nocapture noundef readonly %0, ptr nocapture noundef readonly %1, i64 noundef %2, ptr noundef readnone %3) unnamed_addr #13 {
  %5 = load i64, ptr %1, align 8
  %6 = getelementptr i64, ptr @smelt_tables, i64 %5
  %7 = getelementptr %struct.lib_value, ptr %6, i64 %2
  %8 = getelementptr inbounds i8, ptr %0, i64 80
  %9 = load ptr, ptr %8, align 8
  %10 = getelementptr inbounds i8, ptr %1, i64 40
  %11 = load i64, ptr %10, align 8
  %12 = getelementptr ptr, ptr %9, i64 %11
  %13 = load i64, ptr %7, align 8
  %14 = icmp eq i64 %13, 4
  br i1 %14, label %15, label %26

15:
  %16 = getelementptr inbounds i8, ptr %0, i64 24
  %17 = load ptr, ptr %16, align 8
  %18 = getelementptr inbounds i8, ptr %7, i64 16
  %19 = load i64, ptr %18, align 8
  %20 = getelementptr i64, ptr %17, i64 %19
  %21 = load i64, ptr %20, align 8
  %22 = getelementptr inbounds i8, ptr %7, i64 8
  %23 = load i64, ptr %22, align 8
  %24 = getelementptr %struct.lib_value, ptr %6, i64 %23
  %25 = load i64, ptr %24, align 8
  br label %26

26:
  %27 = phi i64 [ %25, %15 ], [ %13, %4 ]
  %28 = phi ptr [ %24, %15 ], [ %7, %4 ]
  %29 = phi i64 [ %21, %15 ], [ 0, %4 ]
  switch i64 %27, label %57 [
    i64 0, label %30
    i64 1, label %35
    i64 2, label %39
    i64 3, label %48
  ]

30:
  %31 = getelementptr inbounds i8, ptr %28, i64 8
  %32 = load i64, ptr %31, align 8
  %33 = getelementptr ptr, ptr %12, i64 %32
  %34 = load ptr, ptr %33, align 8
  br label %57

35:
  %36 = getelementptr inbounds i8, ptr %28, i64 8
  %37 = load i64, ptr %36, align 8
  %38 = getelementptr i8, ptr @smelt_image, i64 %37
  br label %57

39:
  %40 = getelementptr inbounds i8, ptr %1, i64 48
  %41 = load i64, ptr %40, align 8
  %42 = getelementptr inbounds i8, ptr %28, i64 8
  %43 = load i64, ptr %42, align 8
  %44 = getelementptr ptr, ptr %12, i64 %41
  %45 = getelementptr ptr, ptr %44, i64 %43
  %46 = load ptr, ptr %45, align 8
  %47 = getelementptr i8, ptr %46, i64 %29
  br label %57

48:
  %49 = getelementptr i8, ptr %3, i64 %29
  %50 = getelementptr inbounds i8, ptr %0, i64 24
  %51 = load ptr, ptr %50, align 8
  %52 = getelementptr inbounds i8, ptr %28, i64 16
  %53 = load i64, ptr %52, align 8
  %54 = getelementptr i64, ptr %51, i64 %53
  %55 = load i64, ptr %54, align 8
  %56 = getelementptr i8, ptr %49, i64 %55
  br label %57

57:
  %58 = phi ptr [ %56, %48 ], [ %47, %39 ], [ %38, %35 ], [ %34, %30 ], [ %3, %26 ]
  ret ptr %58
}

define internal fastcc i32 @run_body(ptr nocapture noundef readonly %0, ptr nocapture noundef readonly %1, ptr nocapture noundef readonly %2, ptr noundef %3, ptr noundef %4) unnamed_addr #5 {
  %6 = getelementptr inbounds i8, ptr %2, i64 8
  %7 = load i64, ptr %6, align 8
  %8 = getelementptr i64, ptr @smelt_tables, i64 %7
  %9 = getelementptr inbounds i8, ptr %1, i64 24
  %10 = load ptr, ptr %9, align 8
  %11 = getelementptr inbounds i8, ptr %2, i64 32
  %12 = load i64, ptr %11, align 8
  %13 = getelementptr i64, ptr %10, i64 %12
  %14 = load i64, ptr %13, align 8
  %15 = icmp eq i64 %14, 0
  br i1 %15, label %60, label %16

16:
  %17 = tail call fastcc ptr @fill_frame(ptr noundef nonnull %1, ptr noundef nonnull %2, ptr noundef %3) #17
  %18 = getelementptr inbounds i8, ptr %2, i64 16
  %19 = getelementptr inbounds i8, ptr %1, i64 72
  br label %20

20:
  %21 = phi i64 [ 0, %16 ], [ %58, %55 ]
  %22 = phi i64 [ 0, %16 ], [ %37, %55 ]
  %23 = phi i64 [ 0, %16 ], [ %56, %55 ]
  %24 = load i64, ptr %18, align 8
  %25 = icmp slt i64 %21, %24
  br i1 %25, label %26, label %60

26:
  %27 = load ptr, ptr %19, align 8
  %28 = getelementptr %struct.lib_group, ptr %8, i64 %21
  %29 = getelementptr inbounds i8, ptr %28, i64 16
  %30 = load i64, ptr %29, align 8
  %31 = getelementptr %struct.part, ptr %27, i64 %30
  %32 = icmp eq i64 %23, 0
  br i1 %32, label %33, label %36

33:
  %34 = getelementptr inbounds i8, ptr %31, i64 8
  %35 = load i64, ptr %34, align 8
  br label %36

36:
  %37 = phi i64 [ %22, %26 ], [ %35, %33 ]
  %38 = getelementptr inbounds i8, ptr %31, i64 16
  %39 = load i64, ptr %38, align 8
  %40 = add i64 %39, %23
  %41 = getelementptr inbounds i8, ptr %28, i64 24
  %42 = load i64, ptr %41, align 8
  %43 = icmp eq i64 %42, 0
  br i1 %43, label %44, label %49

44:
  %45 = add nuw nsw i64 %21, 1
  %46 = icmp slt i64 %45, %24
  br i1 %46, label %55, label %47

47:
  %48 = tail call fastcc i32 @run_launches(ptr noundef %0, ptr noundef nonnull %1, i64 noundef %37, i64 noundef %40, ptr noundef %4) #17
  br label %55

49:
  %50 = tail call fastcc i32 @run_launches(ptr noundef %0, ptr noundef nonnull %1, i64 noundef %37, i64 noundef %40, ptr noundef %4) #17
  %51 = icmp eq i32 %50, 0
  br i1 %51, label %52, label %60

52:
  %53 = getelementptr i64, ptr @smelt_tables, i64 %42
  %54 = tail call fastcc i32 @repeat(ptr noundef %0, ptr noundef nonnull %1, ptr noundef nonnull %2, ptr noundef %53, ptr noundef %3, ptr noundef %17, ptr noundef %4) #17
  br label %55

55:
  %56 = phi i64 [ %40, %44 ], [ 0, %52 ], [ 0, %47 ]
  %57 = phi i32 [ 0, %44 ], [ %54, %52 ], [ %48, %47 ]
  %58 = add nuw nsw i64 %21, 1
  %59 = icmp eq i32 %57, 0
  br i1 %59, label %20, label %60

60:
  %61 = phi i32 [ 0, %5 ], [ %50, %49 ], [ 0, %20 ], [ %57, %55 ]
  ret i32 %61
}

define internal fastcc void @copy_results(ptr nocapture noundef readonly %0, ptr nocapture noundef readonly %1, ptr nocapture noundef readonly %2, ptr nocapture noundef readonly %3) unnamed_addr #5 {
  %5 = load ptr, ptr %1, align 8
  %6 = getelementptr inbounds i8, ptr %5, i64 32
  %7 = load i64, ptr %6, align 8
  %8 = getelementptr i64, ptr @smelt_tables, i64 %7
  %9 = load ptr, ptr %0, align 8
  %10 = getelementptr inbounds i8, ptr %9, i64 40
  %11 = load i64, ptr %10, align 8
  %12 = icmp sgt i64 %11, 0
  br i1 %12, label %13, label %15

13:
  %14 = getelementptr inbounds i8, ptr %1, i64 24
  br label %16

15:
  ret void

16:
  %17 = phi ptr [ %9, %13 ], [ %52, %51 ]
  %18 = phi i64 [ 0, %13 ], [ %53, %51 ]
  %19 = getelementptr %struct.lib_result, ptr %8, i64 %18
  %20 = getelementptr inbounds i8, ptr %19, i64 8
  %21 = load i64, ptr %20, align 8
  %22 = getelementptr %struct.smelt_tensor, ptr %3, i64 %18
  %23 = getelementptr inbounds i8, ptr %22, i64 16
  %24 = getelementptr inbounds i8, ptr %22, i64 12
  %25 = load i32, ptr %24, align 4
  %26 = sext i32 %25 to i64
  %27 = getelementptr inbounds i8, ptr %19, i64 24
  %28 = load i64, ptr %27, align 8
  %29 = tail call fastcc i64 @bytes_of(ptr noundef nonnull %23, i64 noundef %26, i64 noundef %28) #17
  %30 = load i64, ptr %19, align 8
  switch i64 %30, label %51 [
    i64 1, label %31
    i64 2, label %34
    i64 3, label %37
    i64 4, label %39
  ]

31:
  %32 = getelementptr %struct.smelt_tensor, ptr %2, i64 %21
  %33 = load ptr, ptr %32, align 8
  br label %42

34:
  %35 = getelementptr %struct.smelt_tensor, ptr %3, i64 %21
  %36 = load ptr, ptr %35, align 8
  br label %42

37:
  %38 = getelementptr i8, ptr @smelt_image, i64 %21
  br label %42

39:
  %40 = load ptr, ptr %14, align 8
  %41 = getelementptr i64, ptr %40, i64 %21
  br label %42

42:
  %43 = phi ptr [ %33, %31 ], [ %36, %34 ], [ %38, %37 ], [ %41, %39 ]
  %44 = icmp ne ptr %43, null
  %45 = icmp ne i64 %29, 0
  %46 = select i1 %44, i1 %45, i1 false
  br i1 %46, label %47, label %51

47:
  %48 = load ptr, ptr %22, align 8
  %49 = tail call ptr @memcpy(ptr noundef %48, ptr noundef nonnull %43, i64 noundef %29) #19
  %50 = load ptr, ptr %0, align 8
  br label %51

51:
  %52 = phi ptr [ %17, %16 ], [ %50, %47 ], [ %17, %42 ]
  %53 = add nuw nsw i64 %18, 1
  %54 = getelementptr inbounds i8, ptr %52, i64 40
  %55 = load i64, ptr %54, align 8
  %56 = icmp slt i64 %53, %55
  br i1 %56, label %16, label %15
}

define internal fastcc range(i32 0, 2) i32 @check_data(ptr nocapture noundef readonly %0, i64 noundef %1, ptr nocapture noundef readonly %2, i64 noundef %3, ptr noundef %4) unnamed_addr #4 {
  %6 = getelementptr inbounds i8, ptr %0, i64 16
  %7 = getelementptr inbounds i8, ptr %0, i64 12
  %8 = load i32, ptr %7, align 4
  %9 = sext i32 %8 to i64
  %10 = tail call fastcc i64 @bytes_of(ptr noundef nonnull %6, i64 noundef %9, i64 noundef %1) #17
  %11 = icmp slt i64 %10, 0
  br i1 %11, label %22, label %12

12:
  %13 = icmp ne i64 %10, 0
  %14 = load ptr, ptr %0, align 8
  %15 = icmp eq ptr %14, null
  %16 = select i1 %13, i1 %15, i1 false
  br i1 %16, label %22, label %17

17:
  %18 = ptrtoint ptr %14 to i64
  %19 = add i64 %1, -1
  %20 = and i64 %19, %18
  %21 = icmp eq i64 %20, 0
  br i1 %21, label %25, label %22

22:
  %23 = phi ptr [ @.str.27, %17 ], [ @.str.25, %5 ], [ @.str.26, %12 ]
  %24 = tail call fastcc i32 @fail(ptr noundef %4, i32 noundef 1, ptr noundef %2) #17
  tail call fastcc void @say_number(ptr noundef %4, i64 noundef %3) #17
  tail call fastcc void @say(ptr noundef %4, ptr noundef nonnull %23) #17
  br label %25

25:
  %26 = phi i32 [ 1, %22 ], [ 0, %17 ]
  ret i32 %26
}

define internal fastcc zeroext i1 @read_parameters(ptr nocapture noundef readonly %0, i64 noundef %1, ptr nocapture noundef readonly %2, ptr nocapture noundef %3, ptr nocapture noundef writeonly %4) unnamed_addr #4 {
  %6 = load i64, ptr %0, align 8
  %7 = getelementptr i64, ptr @smelt_tables, i64 %6
  store i8 0, ptr %4, align 1
  %8 = icmp sgt i64 %1, 0
  br i1 %8, label %10, label %84

9:
  br i1 %8, label %49, label %84

10:
  %11 = phi i64 [ %47, %46 ], [ 0, %5 ]
  %12 = getelementptr %struct.lib_argument, ptr %7, i64 %11
  %13 = getelementptr %struct.smelt_tensor, ptr %2, i64 %11
  %14 = getelementptr inbounds i8, ptr %12, i64 24
  %15 = load i64, ptr %14, align 8
  %16 = getelementptr i64, ptr @smelt_tables, i64 %15
  %17 = getelementptr inbounds i8, ptr %13, i64 8
  %18 = load i32, ptr %17, align 8
  %19 = sext i32 %18 to i64
  %20 = load i64, ptr %12, align 8
  %21 = icmp eq i64 %20, %19
  br i1 %21, label %22, label %113

22:
  %23 = getelementptr inbounds i8, ptr %13, i64 12
  %24 = load i32, ptr %23, align 4
  %25 = sext i32 %24 to i64
  %26 = getelementptr inbounds i8, ptr %12, i64 16
  %27 = load i64, ptr %26, align 8
  %28 = icmp eq i64 %27, %25
  br i1 %28, label %29, label %113

29:
  %30 = getelementptr inbounds i8, ptr %13, i64 16
  %31 = icmp slt i32 %24, 1
  br i1 %31, label %46, label %32

32:
  %33 = phi i64 [ %44, %43 ], [ 0, %29 ]
  %34 = getelementptr i64, ptr %16, i64 %33
  %35 = load i64, ptr %34, align 8
  %36 = icmp slt i64 %35, 0
  %37 = getelementptr [8 x i64], ptr %30, i64 0, i64 %33
  %38 = load i64, ptr %37, align 8
  br i1 %36, label %39, label %41

39:
  %40 = icmp slt i64 %38, 2
  br i1 %40, label %113, label %43

41:
  %42 = icmp eq i64 %38, %35
  br i1 %42, label %43, label %113

43:
  %44 = add nuw nsw i64 %33, 1
  %45 = icmp eq i64 %44, %25
  br i1 %45, label %46, label %32

46:
  %47 = add nuw nsw i64 %11, 1
  %48 = icmp eq i64 %47, %1
  br i1 %48, label %9, label %10

49:
  %50 = phi i64 [ %60, %57 ], [ 0, %9 ]
  %51 = phi i64 [ %59, %57 ], [ 0, %9 ]
  %52 = phi i8 [ %58, %57 ], [ 0, %9 ]
  %53 = getelementptr %struct.lib_argument, ptr %7, i64 %50, i32 2
  %54 = load i64, ptr %53, align 8
  %55 = icmp sgt i64 %54, 0
  br i1 %55, label %62, label %57

56:
  br i1 %8, label %87, label %84

57:
  %58 = phi i8 [ %52, %49 ], [ %79, %76 ]
  %59 = phi i64 [ %51, %49 ], [ %82, %76 ]
  %60 = add nuw nsw i64 %50, 1
  %61 = icmp eq i64 %60, %1
  br i1 %61, label %56, label %49

62:
  %63 = phi i64 [ %81, %76 ], [ 0, %49 ]
  %64 = phi i64 [ %82, %76 ], [ %51, %49 ]
  %65 = phi i8 [ %79, %76 ], [ %52, %49 ]
  %66 = trunc nuw i8 %65 to i1
  br i1 %66, label %67, label %70

67:
  %68 = getelementptr %struct.smelt_tensor, ptr %2, i64 %50, i32 3, i64 %63
  %69 = load i64, ptr %68, align 8
  br label %76

70:
  %71 = getelementptr i64, ptr %3, i64 %64
  %72 = load i64, ptr %71, align 8
  %73 = getelementptr %struct.smelt_tensor, ptr %2, i64 %50, i32 3, i64 %63
  %74 = load i64, ptr %73, align 8
  %75 = icmp ne i64 %72, %74
  br label %76

76:
  %77 = phi i64 [ %69, %67 ], [ %74, %70 ]
  %78 = phi i1 [ true, %67 ], [ %75, %70 ]
  %79 = zext i1 %78 to i8
  %80 = getelementptr i64, ptr %3, i64 %64
  store i64 %77, ptr %80, align 8
  %81 = add nuw nsw i64 %63, 1
  %82 = add i64 %64, 1
  %83 = icmp eq i64 %81, %54
  br i1 %83, label %57, label %62

84:
  %85 = phi i8 [ %58, %56 ], [ 0, %9 ], [ 0, %5 ], [ %109, %108 ]
  store i8 1, ptr %4, align 1
  %86 = trunc nuw i8 %85 to i1
  br label %113

87:
  %88 = phi i64 [ %111, %108 ], [ 0, %56 ]
  %89 = phi i64 [ %110, %108 ], [ %59, %56 ]
  %90 = phi i8 [ %109, %108 ], [ %58, %56 ]
  %91 = getelementptr %struct.lib_argument, ptr %7, i64 %88, i32 4
  %92 = load i64, ptr %91, align 8
  %93 = icmp eq i64 %92, 0
  br i1 %93, label %108, label %94

94:
  %95 = getelementptr %struct.smelt_tensor, ptr %2, i64 %88
  %96 = load ptr, ptr %95, align 8
  %97 = load i64, ptr %96, align 8
  %98 = trunc nuw i8 %90 to i1
  br i1 %98, label %103, label %99

99:
  %100 = getelementptr i64, ptr %3, i64 %89
  %101 = load i64, ptr %100, align 8
  %102 = icmp ne i64 %101, %97
  br label %103

103:
  %104 = phi i1 [ true, %94 ], [ %102, %99 ]
  %105 = zext i1 %104 to i8
  %106 = add i64 %89, 1
  %107 = getelementptr i64, ptr %3, i64 %89
  store i64 %97, ptr %107, align 8
  br label %108

108:
  %109 = phi i8 [ %105, %103 ], [ %90, %87 ]
  %110 = phi i64 [ %106, %103 ], [ %89, %87 ]
  %111 = add nuw nsw i64 %88, 1
  %112 = icmp eq i64 %111, %1
  br i1 %112, label %84, label %87

113:
  %114 = phi i1 [ %86, %84 ], [ true, %41 ], [ true, %39 ], [ true, %22 ], [ true, %10 ]
  ret i1 %114
}

define internal fastcc void @compute(ptr nocapture noundef readonly %0, i64 noundef %1, i64 noundef %2, ptr nocapture noundef readonly %3, ptr nocapture noundef %4) unnamed_addr #14 {
  %6 = icmp slt i64 %1, %2
  br i1 %6, label %8, label %7

7:
  ret void

8:
  %9 = phi i64 [ %174, %171 ], [ %1, %5 ]
  %10 = getelementptr %struct.lib_node, ptr %0, i64 %9
  %11 = getelementptr inbounds i8, ptr %10, i64 8
  %12 = load i64, ptr %11, align 8
  %13 = getelementptr inbounds i8, ptr %10, i64 16
  %14 = load i64, ptr %13, align 8
  %15 = load i64, ptr %10, align 8
  switch i64 %15, label %171 [
    i64 0, label %16
    i64 1, label %17
    i64 2, label %20
    i64 3, label %26
    i64 4, label %32
    i64 5, label %38
    i64 6, label %56
    i64 7, label %78
    i64 8, label %92
    i64 9, label %99
    i64 10, label %106
    i64 11, label %113
    i64 12, label %124
    i64 13, label %129
    i64 14, label %136
    i64 15, label %143
    i64 16, label %150
    i64 17, label %157
    i64 18, label %164
  ]

16:
  br label %171

17:
  %18 = getelementptr i64, ptr %3, i64 %12
  %19 = load i64, ptr %18, align 8
  br label %171

20:
  %21 = getelementptr i64, ptr %4, i64 %12
  %22 = load i64, ptr %21, align 8
  %23 = getelementptr i64, ptr %4, i64 %14
  %24 = load i64, ptr %23, align 8
  %25 = add i64 %24, %22
  br label %171

26:
  %27 = getelementptr i64, ptr %4, i64 %12
  %28 = load i64, ptr %27, align 8
  %29 = getelementptr i64, ptr %4, i64 %14
  %30 = load i64, ptr %29, align 8
  %31 = sub i64 %28, %30
  br label %171

32:
  %33 = getelementptr i64, ptr %4, i64 %12
  %34 = load i64, ptr %33, align 8
  %35 = getelementptr i64, ptr %4, i64 %14
  %36 = load i64, ptr %35, align 8
  %37 = mul i64 %36, %34
  br label %171

38:
  %39 = getelementptr i64, ptr %4, i64 %12
  %40 = load i64, ptr %39, align 8
  %41 = getelementptr i64, ptr %4, i64 %14
  %42 = load i64, ptr %41, align 8
  %43 = icmp eq i64 %42, 0
  br i1 %43, label %171, label %44

44:
  %45 = icmp eq i64 %42, -1
  %46 = icmp eq i64 %40, -9223372036854775808
  %47 = and i1 %46, %45
  br i1 %47, label %171, label %48

48:
  %49 = sdiv i64 %40, %42
  %50 = srem i64 %40, %42
  %51 = icmp eq i64 %50, 0
  %52 = xor i64 %50, %42
  %53 = ashr i64 %52, 63
  %54 = select i1 %51, i64 0, i64 %53
  %55 = add i64 %54, %49
  br label %171

56:
  %57 = getelementptr i64, ptr %4, i64 %12
  %58 = load i64, ptr %57, align 8
  %59 = getelementptr i64, ptr %4, i64 %14
  %60 = load i64, ptr %59, align 8
  %61 = icmp eq i64 %60, 0
  br i1 %61, label %74, label %62

62:
  %63 = icmp eq i64 %60, -1
  %64 = icmp eq i64 %58, -9223372036854775808
  %65 = and i1 %64, %63
  br i1 %65, label %74, label %66

66:
  %67 = sdiv i64 %58, %60
  %68 = srem i64 %58, %60
  %69 = icmp eq i64 %68, 0
  %70 = xor i64 %68, %60
  %71 = ashr i64 %70, 63
  %72 = select i1 %69, i64 0, i64 %71
  %73 = add i64 %72, %67
  br label %74

74:
  %75 = phi i64 [ %73, %66 ], [ 0, %62 ], [ 0, %56 ]
  %76 = mul i64 %75, %60
  %77 = sub i64 %58, %76
  br label %171

78:
  %79 = getelementptr i64, ptr %4, i64 %12
  %80 = load i64, ptr %79, align 8
  %81 = getelementptr i64, ptr %4, i64 %14
  %82 = load i64, ptr %81, align 8
  %83 = icmp eq i64 %82, 0
  br i1 %83, label %89, label %84

84:
  %85 = phi i64 [ %86, %84 ], [ %80, %78 ]
  %86 = phi i64 [ %87, %84 ], [ %82, %78 ]
  %87 = srem i64 %85, %86
  %88 = icmp eq i64 %87, 0
  br i1 %88, label %89, label %84

89:
  %90 = phi i64 [ %80, %78 ], [ %86, %84 ]
  %91 = tail call i64 @llvm.abs.i64(i64 %90, i1 false)
  br label %171

92:
  %93 = getelementptr i64, ptr %4, i64 %12
  %94 = load i64, ptr %93, align 8
  %95 = getelementptr i64, ptr %4, i64 %14
  %96 = load i64, ptr %95, align 8
  %97 = icmp eq i64 %94, %96
  %98 = zext i1 %97 to i64
  br label %171

99:
  %100 = getelementptr i64, ptr %4, i64 %12
  %101 = load i64, ptr %100, align 8
  %102 = getelementptr i64, ptr %4, i64 %14
  %103 = load i64, ptr %102, align 8
  %104 = icmp slt i64 %101, %103
  %105 = zext i1 %104 to i64
  br label %171

106:
  %107 = getelementptr i64, ptr %4, i64 %12
  %108 = load i64, ptr %107, align 8
  %109 = getelementptr i64, ptr %4, i64 %14
  %110 = load i64, ptr %109, align 8
  %111 = icmp sle i64 %108, %110
  %112 = zext i1 %111 to i64
  br label %171

113:
  %114 = getelementptr i64, ptr %4, i64 %12
  %115 = load i64, ptr %114, align 8
  %116 = icmp eq i64 %115, 0
  br i1 %116, label %117, label %120

117:
  %118 = getelementptr inbounds i8, ptr %10, i64 24
  %119 = load i64, ptr %118, align 8
  br label %120

120:
  %121 = phi i64 [ %119, %117 ], [ %14, %113 ]
  %122 = getelementptr i64, ptr %4, i64 %121
  %123 = load i64, ptr %122, align 8
  br label %171

124:
  %125 = getelementptr i64, ptr %4, i64 %12
  %126 = load i64, ptr %125, align 8
  %127 = sitofp i64 %126 to double
  %128 = bitcast double %127 to i64
  br label %171

129:
  %130 = getelementptr i64, ptr %4, i64 %12
  %131 = load double, ptr %130, align 8
  %132 = getelementptr i64, ptr %4, i64 %14
  %133 = load double, ptr %132, align 8
  %134 = fadd double %131, %133
  %135 = bitcast double %134 to i64
  br label %171

136:
  %137 = getelementptr i64, ptr %4, i64 %12
  %138 = load double, ptr %137, align 8
  %139 = getelementptr i64, ptr %4, i64 %14
  %140 = load double, ptr %139, align 8
  %141 = fsub double %138, %140
  %142 = bitcast double %141 to i64
  br label %171

143:
  %144 = getelementptr i64, ptr %4, i64 %12
  %145 = load double, ptr %144, align 8
  %146 = getelementptr i64, ptr %4, i64 %14
  %147 = load double, ptr %146, align 8
  %148 = fmul double %145, %147
  %149 = bitcast double %148 to i64
  br label %171

150:
  %151 = getelementptr i64, ptr %4, i64 %12
  %152 = load double, ptr %151, align 8
  %153 = getelementptr i64, ptr %4, i64 %14
  %154 = load double, ptr %153, align 8
  %155 = fdiv double %152, %154
  %156 = bitcast double %155 to i64
  br label %171

157:
  %158 = getelementptr i64, ptr %4, i64 %12
  %159 = load double, ptr %158, align 8
  %160 = getelementptr i64, ptr %4, i64 %14
  %161 = load double, ptr %160, align 8
  %162 = fcmp olt double %159, %161
  %163 = zext i1 %162 to i64
  br label %171

164:
  %165 = getelementptr i64, ptr %4, i64 %12
  %166 = load double, ptr %165, align 8
  %167 = getelementptr i64, ptr %4, i64 %14
  %168 = load double, ptr %167, align 8
  %169 = fcmp ole double %166, %168
  %170 = zext i1 %169 to i64
  br label %171

171:
  %172 = phi i64 [ 0, %8 ], [ %170, %164 ], [ %163, %157 ], [ %156, %150 ], [ %149, %143 ], [ %142, %136 ], [ %135, %129 ], [ %128, %124 ], [ %123, %120 ], [ %112, %106 ], [ %105, %99 ], [ %98, %92 ], [ %91, %89 ], [ %77, %74 ], [ %37, %32 ], [ %31, %26 ], [ %25, %20 ], [ %19, %17 ], [ %12, %16 ], [ %55, %48 ], [ 0, %44 ], [ 0, %38 ]
  %173 = getelementptr i64, ptr %4, i64 %9
  store i64 %172, ptr %173, align 8
  %174 = add nsw i64 %9, 1
  %175 = icmp eq i64 %174, %2
  br i1 %175, label %7, label %8
}

define internal fastcc noundef i32 @refuse(ptr nocapture noundef readonly %0, ptr nocapture noundef readonly %1, ptr noundef %2) unnamed_addr #4 {
  %4 = load ptr, ptr %0, align 8
  %5 = getelementptr inbounds i8, ptr %4, i64 16
  %6 = load i64, ptr %5, align 8
  %7 = getelementptr i64, ptr @smelt_tables, i64 %6
  %8 = load i64, ptr %7, align 8
  %9 = getelementptr i64, ptr @smelt_tables, i64 %8
  %10 = getelementptr inbounds i8, ptr %4, i64 32
  %11 = load i64, ptr %10, align 8
  %12 = icmp sgt i64 %11, 0
  br i1 %12, label %16, label %13

13:
  %14 = phi i32 [ 3, %3 ], [ %35, %34 ]
  %15 = tail call fastcc i32 @say_call(ptr noundef nonnull %0, i32 noundef %14, ptr noundef %1, i64 noundef %11, ptr noundef %2) #17
  ret i32 %14

16:
  %17 = phi i64 [ %36, %34 ], [ 0, %3 ]
  %18 = phi i32 [ %35, %34 ], [ 3, %3 ]
  %19 = getelementptr %struct.smelt_tensor, ptr %1, i64 %17
  %20 = getelementptr inbounds i8, ptr %19, i64 8
  %21 = load i32, ptr %20, align 8
  %22 = sext i32 %21 to i64
  %23 = getelementptr %struct.lib_argument, ptr %9, i64 %17
  %24 = load i64, ptr %23, align 8
  %25 = icmp eq i64 %24, %22
  br i1 %25, label %26, label %33

26:
  %27 = getelementptr inbounds i8, ptr %19, i64 12
  %28 = load i32, ptr %27, align 4
  %29 = sext i32 %28 to i64
  %30 = getelementptr inbounds i8, ptr %23, i64 16
  %31 = load i64, ptr %30, align 8
  %32 = icmp eq i64 %31, %29
  br i1 %32, label %34, label %33

33:
  br label %34

34:
  %35 = phi i32 [ 2, %33 ], [ %18, %26 ]
  %36 = add nuw nsw i64 %17, 1
  %37 = icmp eq i64 %36, %11
  br i1 %37, label %13, label %16
}

define internal fastcc void @describe(ptr nocapture noundef readonly %0, ptr nocapture noundef readonly %1, ptr nocapture noundef writeonly %2) unnamed_addr #4 {
  %4 = getelementptr inbounds i8, ptr %1, i64 40
  %5 = load i64, ptr %4, align 8
  %6 = getelementptr i64, ptr @smelt_tables, i64 %5
  %7 = getelementptr inbounds i8, ptr %1, i64 16
  %8 = load i64, ptr %7, align 8
  %9 = trunc i64 %8 to i32
  %10 = getelementptr inbounds i8, ptr %2, i64 8
  store i32 %9, ptr %10, align 8
  %11 = getelementptr inbounds i8, ptr %1, i64 32
  %12 = load i64, ptr %11, align 8
  %13 = trunc i64 %12 to i32
  %14 = getelementptr inbounds i8, ptr %2, i64 12
  store i32 %13, ptr %14, align 4
  %15 = load i64, ptr %11, align 8
  %16 = icmp sgt i64 %15, 0
  br i1 %16, label %17, label %20

17:
  %18 = getelementptr inbounds i8, ptr %0, i64 24
  %19 = getelementptr inbounds i8, ptr %2, i64 16
  br label %21

20:
  ret void

21:
  %22 = phi i64 [ 0, %17 ], [ %29, %21 ]
  %23 = load ptr, ptr %18, align 8
  %24 = getelementptr i64, ptr %6, i64 %22
  %25 = load i64, ptr %24, align 8
  %26 = getelementptr i64, ptr %23, i64 %25
  %27 = load i64, ptr %26, align 8
  %28 = getelementptr [8 x i64], ptr %19, i64 0, i64 %22
  store i64 %27, ptr %28, align 8
  %29 = add nuw nsw i64 %22, 1
  %30 = load i64, ptr %11, align 8
  %31 = icmp slt i64 %29, %30
  br i1 %31, label %21, label %20
}

define internal fastcc ptr @nearest_plan(ptr nocapture noundef readonly %0, ptr nocapture noundef readonly %1) unnamed_addr #7 {
  %3 = load ptr, ptr %1, align 8
  %4 = getelementptr inbounds i8, ptr %3, i64 40
  %5 = load i64, ptr %4, align 8
  %6 = getelementptr i64, ptr @smelt_tables, i64 %5
  %7 = getelementptr inbounds i8, ptr %3, i64 48
  %8 = load i64, ptr %7, align 8
  %9 = icmp sgt i64 %8, 0
  br i1 %9, label %10, label %14

10:
  %11 = getelementptr inbounds i8, ptr %0, i64 8
  %12 = load ptr, ptr %11, align 8
  %13 = getelementptr inbounds i8, ptr %1, i64 24
  br label %16

14:
  %15 = phi ptr [ null, %2 ], [ %64, %62 ]
  ret ptr %15

16:
  %17 = phi ptr [ null, %10 ], [ %64, %62 ]
  %18 = phi double [ 0.000000e+00, %10 ], [ %63, %62 ]
  %19 = phi i64 [ 0, %10 ], [ %65, %62 ]
  %20 = getelementptr %struct.lib_plan, ptr %6, i64 %19
  %21 = getelementptr inbounds i8, ptr %20, i64 8
  %22 = load i64, ptr %21, align 8
  %23 = getelementptr i64, ptr @smelt_tables, i64 %22
  %24 = load i64, ptr %20, align 8
  %25 = getelementptr i64, ptr @smelt_tables, i64 %24
  %26 = icmp eq ptr %25, %12
  br i1 %26, label %27, label %62

27:
  %28 = getelementptr inbounds i8, ptr %20, i64 16
  %29 = load i64, ptr %28, align 8
  %30 = icmp sgt i64 %29, 0
  br i1 %30, label %31, label %33

31:
  %32 = load ptr, ptr %13, align 8
  br label %40

33:
  %34 = phi double [ 1.000000e+00, %27 ], [ %59, %40 ]
  %35 = icmp eq ptr %17, null
  %36 = fcmp olt double %34, %18
  %37 = select i1 %35, i1 true, i1 %36
  %38 = select i1 %37, double %34, double %18
  %39 = select i1 %37, ptr %20, ptr %17
  br label %62

40:
  %41 = phi i64 [ 0, %31 ], [ %60, %40 ]
  %42 = phi double [ 1.000000e+00, %31 ], [ %59, %40 ]
  %43 = shl nuw i64 %41, 1
  %44 = getelementptr i64, ptr %23, i64 %43
  %45 = load i64, ptr %44, align 8
  %46 = getelementptr i64, ptr %32, i64 %45
  %47 = load i64, ptr %46, align 8
  %48 = or disjoint i64 %43, 1
  %49 = getelementptr i64, ptr %23, i64 %48
  %50 = load i64, ptr %49, align 8
  %51 = tail call i64 @llvm.smax.i64(i64 %47, i64 1)
  %52 = uitofp nneg i64 %51 to double
  %53 = tail call i64 @llvm.smax.i64(i64 %50, i64 1)
  %54 = uitofp nneg i64 %53 to double
  %55 = fdiv double %52, %54
  %56 = fcmp olt double %55, 1.000000e+00
  %57 = fdiv double 1.000000e+00, %55
  %58 = select i1 %56, double %57, double %55
  %59 = fmul double %42, %58
  %60 = add nuw nsw i64 %41, 1
  %61 = icmp eq i64 %60, %29
  br i1 %61, label %33, label %40

62:
  %63 = phi double [ %38, %33 ], [ %18, %16 ]
  %64 = phi ptr [ %39, %33 ], [ %17, %16 ]
  %65 = add nuw nsw i64 %19, 1
  %66 = icmp eq i64 %65, %8
  br i1 %66, label %14, label %16
}

define internal fastcc i64 @lay_out(ptr noundef %0, ptr nocapture noundef readonly %1, i64 noundef %2, i1 noundef zeroext %3) unnamed_addr #15 {
  %5 = getelementptr inbounds i8, ptr %1, i64 8
  %6 = load i64, ptr %5, align 8
  %7 = getelementptr i64, ptr @smelt_tables, i64 %6
  %8 = getelementptr inbounds i8, ptr %0, i64 24
  %9 = load ptr, ptr %8, align 8
  %10 = getelementptr inbounds i8, ptr %1, i64 24
  %11 = load i64, ptr %10, align 8
  %12 = getelementptr i64, ptr %9, i64 %11
  %13 = load i64, ptr %12, align 8
  %14 = add i64 %13, 63
  %15 = and i64 %14, -64
  %16 = getelementptr inbounds i8, ptr %1, i64 32
  %17 = load i64, ptr %16, align 8
  %18 = getelementptr i64, ptr %9, i64 %17
  %19 = load i64, ptr %18, align 8
  %20 = icmp eq i64 %19, 0
  br i1 %20, label %77, label %21

21:
  %22 = getelementptr inbounds i8, ptr %1, i64 16
  %23 = load i64, ptr %22, align 8
  %24 = icmp sgt i64 %23, 0
  br i1 %24, label %27, label %33

25:
  %26 = icmp sgt i64 %31, 0
  br i1 %26, label %37, label %33

27:
  %28 = phi i64 [ %30, %27 ], [ 0, %21 ]
  %29 = getelementptr %struct.lib_group, ptr %7, i64 %28
  tail call fastcc void @lay_out_group(ptr noundef %0, ptr noundef %29, i64 noundef %2, i1 noundef zeroext %3) #17
  %30 = add nuw nsw i64 %28, 1
  %31 = load i64, ptr %22, align 8
  %32 = icmp slt i64 %30, %31
  br i1 %32, label %27, label %25

33:
  %34 = phi i64 [ 0, %25 ], [ 0, %21 ], [ %74, %72 ]
  %35 = phi i64 [ %15, %25 ], [ %15, %21 ], [ %44, %72 ]
  %36 = add i64 %35, %34
  br label %77

37:
  %38 = phi i64 [ %73, %72 ], [ %31, %25 ]
  %39 = phi i64 [ %75, %72 ], [ 0, %25 ]
  %40 = phi i64 [ %44, %72 ], [ %15, %25 ]
  %41 = phi i64 [ %74, %72 ], [ 0, %25 ]
  %42 = getelementptr %struct.lib_group, ptr %7, i64 %39
  %43 = tail call fastcc i64 @workspace_bytes(ptr noundef %0, ptr noundef %42) #17
  %44 = add i64 %43, %40
  %45 = getelementptr inbounds i8, ptr %42, i64 24
  %46 = load i64, ptr %45, align 8
  %47 = icmp eq i64 %46, 0
  br i1 %47, label %72, label %48

48:
  %49 = getelementptr i64, ptr @smelt_tables, i64 %46
  %50 = load i64, ptr %49, align 8
  %51 = getelementptr i64, ptr @smelt_tables, i64 %50
  %52 = tail call fastcc i64 @lay_out(ptr noundef %0, ptr noundef %51, i64 noundef %2, i1 noundef zeroext %3) #17
  %53 = getelementptr inbounds i8, ptr %49, i64 8
  %54 = load i64, ptr %53, align 8
  %55 = icmp eq i64 %54, %50
  br i1 %55, label %60, label %56

56:
  %57 = getelementptr i64, ptr @smelt_tables, i64 %54
  %58 = tail call fastcc i64 @lay_out(ptr noundef %0, ptr noundef %57, i64 noundef %2, i1 noundef zeroext %3) #17
  %59 = tail call noundef i64 @llvm.smax.i64(i64 %52, i64 %58)
  br label %60

60:
  %61 = phi i64 [ %59, %56 ], [ %52, %48 ]
  %62 = load ptr, ptr %8, align 8
  %63 = getelementptr inbounds i8, ptr %49, i64 40
  %64 = load i64, ptr %63, align 8
  %65 = getelementptr i64, ptr %62, i64 %64
  %66 = load i64, ptr %65, align 8
  %67 = add i64 %66, 63
  %68 = and i64 %67, -64
  %69 = add i64 %68, %61
  %70 = tail call noundef i64 @llvm.smax.i64(i64 %41, i64 %69)
  %71 = load i64, ptr %22, align 8
  br label %72

72:
  %73 = phi i64 [ %71, %60 ], [ %38, %37 ]
  %74 = phi i64 [ %70, %60 ], [ %41, %37 ]
  %75 = add nuw nsw i64 %39, 1
  %76 = icmp slt i64 %75, %73
  br i1 %76, label %37, label %33

77:
  %78 = phi i64 [ %36, %33 ], [ 0, %4 ]
  ret i64 %78
}

define internal fastcc void @lay_out_group(ptr nocapture noundef %0, ptr nocapture noundef readonly %1, i64 noundef %2, i1 noundef zeroext %3) unnamed_addr #9 {
  %5 = load i64, ptr %1, align 8
  %6 = getelementptr i64, ptr @smelt_tables, i64 %5
  %7 = getelementptr inbounds i8, ptr %0, i64 104
  %8 = load i64, ptr %7, align 8
  %9 = getelementptr inbounds i8, ptr %0, i64 120
  %10 = load i64, ptr %9, align 8
  %11 = getelementptr inbounds i8, ptr %0, i64 112
  %12 = getelementptr inbounds i8, ptr %1, i64 8
  %13 = getelementptr inbounds i8, ptr %0, i64 24
  %14 = getelementptr inbounds i8, ptr %0, i64 64
  %15 = load i64, ptr %12, align 8
  %16 = icmp sgt i64 %15, 0
  br i1 %16, label %19, label %18

17:
  br i1 %3, label %85, label %95

18:
  store i64 %8, ptr %7, align 8
  br label %17

19:
  %20 = phi i64 [ %83, %81 ], [ %15, %4 ]
  %21 = phi i64 [ %82, %81 ], [ 0, %4 ]
  %22 = load i64, ptr %11, align 8
  %23 = getelementptr %struct.lib_function, ptr @smelt_tables, i64 %21
  %24 = add i64 %21, 1
  br label %29

25:
  %26 = load i64, ptr %11, align 8
  store i64 %61, ptr %7, align 8
  %27 = sub i64 %26, %22
  %28 = icmp eq i64 %26, %22
  br i1 %28, label %80, label %64

29:
  %30 = phi i64 [ %20, %19 ], [ %55, %54 ]
  %31 = phi i1 [ false, %19 ], [ %58, %54 ]
  %32 = phi i64 [ 0, %19 ], [ %62, %54 ]
  %33 = phi double [ 0.000000e+00, %19 ], [ %56, %54 ]
  %34 = phi i64 [ %8, %19 ], [ %61, %54 ]
  %35 = getelementptr %struct.lib_kernel, ptr %6, i64 %32
  %36 = getelementptr inbounds i8, ptr %35, i64 8
  %37 = load i64, ptr %36, align 8
  %38 = getelementptr i64, ptr @smelt_tables, i64 %37
  %39 = load ptr, ptr %13, align 8
  %40 = load i64, ptr %35, align 8
  %41 = getelementptr i64, ptr %39, i64 %40
  %42 = load i64, ptr %41, align 8
  %43 = getelementptr %struct.lib_variant, ptr %38, i64 %42
  %44 = getelementptr inbounds i8, ptr %43, i64 40
  %45 = load i64, ptr %44, align 8
  %46 = icmp slt i64 %21, %45
  br i1 %46, label %47, label %54

47:
  %48 = getelementptr inbounds i8, ptr %43, i64 32
  %49 = load i64, ptr %48, align 8
  %50 = getelementptr i64, ptr %23, i64 %49
  %51 = tail call fastcc double @add_chunks(ptr noundef nonnull %0, ptr noundef %50, i64 noundef %34, i64 noundef %2, i1 noundef zeroext %3) #17
  %52 = fadd double %33, %51
  %53 = load i64, ptr %12, align 8
  br label %54

54:
  %55 = phi i64 [ %53, %47 ], [ %30, %29 ]
  %56 = phi double [ %52, %47 ], [ %33, %29 ]
  %57 = icmp slt i64 %24, %45
  %58 = or i1 %31, %57
  %59 = getelementptr inbounds i8, ptr %43, i64 8
  %60 = load i64, ptr %59, align 8
  %61 = add i64 %60, %34
  %62 = add nuw nsw i64 %32, 1
  %63 = icmp slt i64 %62, %55
  br i1 %63, label %29, label %25

64:
  %65 = load i64, ptr %9, align 8
  br i1 %3, label %66, label %77

66:
  %67 = load ptr, ptr %14, align 8
  %68 = getelementptr %struct.launch, ptr %67, i64 %65
  store i64 %22, ptr %68, align 8
  %69 = getelementptr inbounds i8, ptr %68, i64 8
  store i64 %27, ptr %69, align 8
  %70 = fcmp ogt double %56, 8.000000e+03
  %71 = icmp sgt i64 %27, 1
  %72 = select i1 %70, i1 %71, i1 false
  %73 = zext i1 %72 to i64
  %74 = getelementptr inbounds i8, ptr %68, i64 16
  store i64 %73, ptr %74, align 8
  %75 = getelementptr inbounds i8, ptr %68, i64 24
  store i64 0, ptr %75, align 8
  %76 = load i64, ptr %9, align 8
  br label %77

77:
  %78 = phi i64 [ %76, %66 ], [ %65, %64 ]
  %79 = add i64 %78, 1
  store i64 %79, ptr %9, align 8
  br i1 %58, label %81, label %17

80:
  br i1 %58, label %81, label %17

81:
  %82 = add i64 %21, 1
  %83 = load i64, ptr %12, align 8
  %84 = icmp sgt i64 %83, 0
  br i1 %84, label %19, label %18

85:
  %86 = load i64, ptr %9, align 8
  %87 = sub i64 %86, %10
  %88 = getelementptr inbounds i8, ptr %0, i64 72
  %89 = load ptr, ptr %88, align 8
  %90 = getelementptr inbounds i8, ptr %1, i64 16
  %91 = load i64, ptr %90, align 8
  %92 = getelementptr %struct.part, ptr %89, i64 %91
  store i64 %8, ptr %92, align 8
  %93 = getelementptr inbounds i8, ptr %92, i64 8
  store i64 %10, ptr %93, align 8
  %94 = getelementptr inbounds i8, ptr %92, i64 16
  store i64 %87, ptr %94, align 8
  br label %95

95:
  ret void
}

define internal fastcc i64 @workspace_bytes(ptr nocapture noundef readonly %0, ptr nocapture noundef readonly %1) unnamed_addr #7 {
  %3 = getelementptr inbounds i8, ptr %1, i64 8
  %4 = load i64, ptr %3, align 8
  %5 = icmp sgt i64 %4, 0
  br i1 %5, label %6, label %11

6:
  %7 = load i64, ptr %1, align 8
  %8 = getelementptr i64, ptr @smelt_tables, i64 %7
  %9 = getelementptr inbounds i8, ptr %0, i64 24
  %10 = load ptr, ptr %9, align 8
  br label %13

11:
  %12 = phi i64 [ 0, %2 ], [ %31, %30 ]
  ret i64 %12

13:
  %14 = phi i64 [ 0, %6 ], [ %31, %30 ]
  %15 = phi i64 [ 0, %6 ], [ %32, %30 ]
  %16 = getelementptr %struct.lib_kernel, ptr %8, i64 %15
  %17 = getelementptr inbounds i8, ptr %16, i64 8
  %18 = load i64, ptr %17, align 8
  %19 = getelementptr i64, ptr @smelt_tables, i64 %18
  %20 = load i64, ptr %16, align 8
  %21 = getelementptr i64, ptr %10, i64 %20
  %22 = load i64, ptr %21, align 8
  %23 = getelementptr %struct.lib_variant, ptr %19, i64 %22
  %24 = getelementptr inbounds i8, ptr %23, i64 24
  %25 = load i64, ptr %24, align 8
  %26 = icmp sgt i64 %25, 0
  br i1 %26, label %27, label %30

27:
  %28 = getelementptr inbounds i8, ptr %23, i64 16
  %29 = load i64, ptr %28, align 8
  br label %34

30:
  %31 = phi i64 [ %14, %13 ], [ %44, %34 ]
  %32 = add nuw nsw i64 %15, 1
  %33 = icmp eq i64 %32, %4
  br i1 %33, label %11, label %13

34:
  %35 = phi i64 [ 0, %27 ], [ %45, %34 ]
  %36 = phi i64 [ %14, %27 ], [ %44, %34 ]
  %37 = add i64 %29, %35
  %38 = getelementptr [0 x i64], ptr @smelt_tables, i64 0, i64 %37
  %39 = load i64, ptr %38, align 8
  %40 = getelementptr i64, ptr %10, i64 %39
  %41 = load i64, ptr %40, align 8
  %42 = add i64 %41, 63
  %43 = and i64 %42, -64
  %44 = add i64 %43, %36
  %45 = add nuw nsw i64 %35, 1
  %46 = icmp eq i64 %45, %25
  br i1 %46, label %30, label %34
}

define internal fastcc double @add_chunks(ptr nocapture noundef %0, ptr nocapture noundef readonly %1, i64 noundef %2, i64 noundef %3, i1 noundef zeroext %4) unnamed_addr #9 {
  %6 = getelementptr inbounds i8, ptr %0, i64 24
  %7 = load ptr, ptr %6, align 8
  %8 = getelementptr inbounds i8, ptr %1, i64 8
  %9 = load i64, ptr %8, align 8
  %10 = getelementptr i64, ptr %7, i64 %9
  %11 = load i64, ptr %10, align 8
  %12 = getelementptr inbounds i8, ptr %1, i64 16
  %13 = load i64, ptr %12, align 8
  %14 = getelementptr i64, ptr %7, i64 %13
  %15 = load i64, ptr %14, align 8
  %16 = getelementptr inbounds i8, ptr %1, i64 24
  %17 = load i64, ptr %16, align 8
  %18 = getelementptr i64, ptr %7, i64 %17
  %19 = load i64, ptr %18, align 8
  %20 = sitofp i64 %19 to double
  %21 = fmul double %20, 2.500000e-01
  %22 = getelementptr inbounds i8, ptr %0, i64 128
  %23 = load i64, ptr %22, align 8
  %24 = icmp sgt i64 %15, %23
  br i1 %24, label %25, label %26

25:
  store i64 %15, ptr %22, align 8
  br label %26

26:
  %27 = icmp slt i64 %11, 1
  br i1 %27, label %81, label %28

28:
  %29 = fdiv double %21, 2.000000e+07
  %30 = fptosi double %29 to i64
  %31 = tail call i64 @llvm.smax.i64(i64 %30, i64 64)
  %32 = tail call i64 @llvm.umin.i64(i64 %11, i64 %31)
  %33 = fdiv double %21, 1.000000e+04
  %34 = fptosi double %33 to i64
  %35 = tail call noundef i64 @llvm.smin.i64(i64 %32, i64 %34)
  %36 = tail call i64 @llvm.smax.i64(i64 %35, i64 1)
  %37 = icmp sgt i64 %36, %3
  br i1 %37, label %38, label %44

38:
  %39 = add i64 %3, -1
  %40 = add i64 %39, %36
  %41 = srem i64 %40, %3
  %42 = sub nsw i64 %40, %41
  %43 = tail call noundef i64 @llvm.smin.i64(i64 %42, i64 %11)
  br label %44

44:
  %45 = phi i64 [ %43, %38 ], [ %36, %28 ]
  %46 = fcmp ugt double %21, 8.000000e+03
  %47 = select i1 %46, i64 %45, i64 1
  %48 = icmp sgt i64 %47, 0
  %49 = select i1 %4, i1 %48, i1 false
  br i1 %49, label %50, label %56

50:
  %51 = getelementptr inbounds i8, ptr %0, i64 56
  %52 = getelementptr inbounds i8, ptr %0, i64 112
  %53 = shl i64 %2, 3
  %54 = udiv i64 %11, %47
  %55 = urem i64 %11, %47
  br label %60

56:
  %57 = getelementptr inbounds i8, ptr %0, i64 112
  %58 = load i64, ptr %57, align 8
  %59 = add i64 %58, %47
  store i64 %59, ptr %57, align 8
  br label %81

60:
  %61 = phi i64 [ 0, %50 ], [ %74, %60 ]
  %62 = load ptr, ptr %51, align 8
  %63 = load i64, ptr %52, align 8
  %64 = getelementptr %struct.chunk, ptr %62, i64 %63
  %65 = getelementptr %struct.chunk, ptr %64, i64 %61
  %66 = load i64, ptr %1, align 8
  %67 = add i64 %66, ptrtoint (ptr @smelt_image to i64)
  store i64 %67, ptr %65, align 8
  %68 = getelementptr inbounds i8, ptr %65, i64 8
  store i64 %53, ptr %68, align 8
  %69 = mul i64 %54, %61
  %70 = mul i64 %55, %61
  %71 = sdiv i64 %70, %47
  %72 = add i64 %71, %69
  %73 = getelementptr inbounds i8, ptr %65, i64 16
  store i64 %72, ptr %73, align 8
  %74 = add nuw nsw i64 %61, 1
  %75 = mul i64 %54, %74
  %76 = mul i64 %55, %74
  %77 = sdiv i64 %76, %47
  %78 = add i64 %77, %75
  %79 = getelementptr inbounds i8, ptr %65, i64 24
  store i64 %78, ptr %79, align 8
  %80 = icmp slt i64 %74, %47
  br i1 %80, label %60, label %56

81:
  %82 = phi double [ %21, %56 ], [ 0.000000e+00, %26 ]
  ret double %82
}

define internal fastcc ptr @fill_frame(ptr nocapture noundef readonly %0, ptr nocapture noundef readonly %1, ptr noundef %2) unnamed_addr #9 {
  %4 = getelementptr inbounds i8, ptr %1, i64 8
  %5 = load i64, ptr %4, align 8
  %6 = getelementptr i64, ptr @smelt_tables, i64 %5
  %7 = getelementptr inbounds i8, ptr %0, i64 24
  %8 = load ptr, ptr %7, align 8
  %9 = getelementptr inbounds i8, ptr %1, i64 24
  %10 = load i64, ptr %9, align 8
  %11 = getelementptr i64, ptr %8, i64 %10
  %12 = load i64, ptr %11, align 8
  %13 = add i64 %12, 63
  %14 = and i64 %13, -64
  %15 = getelementptr i8, ptr %2, i64 %14
  %16 = getelementptr inbounds i8, ptr %1, i64 16
  %17 = load i64, ptr %16, align 8
  %18 = icmp sgt i64 %17, 0
  br i1 %18, label %19, label %22

19:
  %20 = getelementptr inbounds i8, ptr %0, i64 48
  %21 = getelementptr inbounds i8, ptr %0, i64 72
  br label %24

22:
  %23 = phi ptr [ %15, %3 ], [ %46, %44 ]
  ret ptr %23

24:
  %25 = phi i64 [ %17, %19 ], [ %45, %44 ]
  %26 = phi ptr [ %15, %19 ], [ %46, %44 ]
  %27 = phi i64 [ 0, %19 ], [ %47, %44 ]
  %28 = getelementptr %struct.lib_group, ptr %6, i64 %27
  %29 = getelementptr inbounds i8, ptr %28, i64 8
  %30 = load i64, ptr %29, align 8
  %31 = icmp sgt i64 %30, 0
  br i1 %31, label %32, label %44

32:
  %33 = load ptr, ptr %20, align 8
  %34 = load ptr, ptr %21, align 8
  %35 = getelementptr inbounds i8, ptr %28, i64 16
  %36 = load i64, ptr %35, align 8
  %37 = getelementptr %struct.part, ptr %34, i64 %36
  %38 = load i64, ptr %37, align 8
  %39 = getelementptr i64, ptr %33, i64 %38
  %40 = load i64, ptr %28, align 8
  %41 = getelementptr i64, ptr @smelt_tables, i64 %40
  br label %49

42:
  %43 = load i64, ptr %16, align 8
  br label %44

44:
  %45 = phi i64 [ %25, %24 ], [ %43, %42 ]
  %46 = phi ptr [ %26, %24 ], [ %118, %42 ]
  %47 = add nuw nsw i64 %27, 1
  %48 = icmp slt i64 %47, %45
  br i1 %48, label %24, label %22

49:
  %50 = phi ptr [ %26, %32 ], [ %118, %117 ]
  %51 = phi i64 [ 0, %32 ], [ %119, %117 ]
  %52 = phi ptr [ %39, %32 ], [ %71, %117 ]
  %53 = getelementptr %struct.lib_kernel, ptr %41, i64 %51
  %54 = getelementptr inbounds i8, ptr %53, i64 8
  %55 = load i64, ptr %54, align 8
  %56 = getelementptr i64, ptr @smelt_tables, i64 %55
  %57 = load ptr, ptr %7, align 8
  %58 = load i64, ptr %53, align 8
  %59 = getelementptr i64, ptr %57, i64 %58
  %60 = load i64, ptr %59, align 8
  %61 = getelementptr %struct.lib_variant, ptr %56, i64 %60
  %62 = load i64, ptr %61, align 8
  %63 = getelementptr i64, ptr @smelt_tables, i64 %62
  %64 = getelementptr inbounds i8, ptr %61, i64 8
  %65 = load i64, ptr %64, align 8
  %66 = icmp sgt i64 %65, 0
  br i1 %66, label %67, label %70

67:
  %68 = ptrtoint ptr %50 to i64
  %69 = getelementptr inbounds i8, ptr %61, i64 16
  br label %79

70:
  %71 = phi ptr [ %52, %49 ], [ %115, %113 ]
  %72 = getelementptr inbounds i8, ptr %61, i64 24
  %73 = load i64, ptr %72, align 8
  %74 = icmp sgt i64 %73, 0
  br i1 %74, label %75, label %117

75:
  %76 = load ptr, ptr %7, align 8
  %77 = getelementptr inbounds i8, ptr %61, i64 16
  %78 = load i64, ptr %77, align 8
  br label %121

79:
  %80 = phi i64 [ 0, %67 ], [ %114, %113 ]
  %81 = phi ptr [ %52, %67 ], [ %115, %113 ]
  %82 = getelementptr %struct.lib_word, ptr %63, i64 %80
  %83 = getelementptr inbounds i8, ptr %82, i64 8
  %84 = load i64, ptr %83, align 8
  %85 = load i64, ptr %82, align 8
  switch i64 %85, label %93 [
    i64 0, label %86
    i64 2, label %89
  ]

86:
  %87 = tail call fastcc ptr @address_of(ptr noundef %0, ptr noundef %1, i64 noundef %84, ptr noundef %2) #17
  %88 = ptrtoint ptr %87 to i64
  br label %111

89:
  %90 = load ptr, ptr %7, align 8
  %91 = getelementptr i64, ptr %90, i64 %84
  %92 = load i64, ptr %91, align 8
  br label %111

93:
  store i64 %68, ptr %81, align 8
  %94 = icmp sgt i64 %84, 0
  br i1 %94, label %95, label %113

95:
  %96 = load i64, ptr %69, align 8
  br label %97

97:
  %98 = phi i64 [ %68, %95 ], [ %108, %97 ]
  %99 = phi i64 [ 0, %95 ], [ %109, %97 ]
  %100 = load ptr, ptr %7, align 8
  %101 = add i64 %96, %99
  %102 = getelementptr [0 x i64], ptr @smelt_tables, i64 0, i64 %101
  %103 = load i64, ptr %102, align 8
  %104 = getelementptr i64, ptr %100, i64 %103
  %105 = load i64, ptr %104, align 8
  %106 = add i64 %105, 63
  %107 = and i64 %106, -64
  %108 = add i64 %107, %98
  store i64 %108, ptr %81, align 8
  %109 = add nuw nsw i64 %99, 1
  %110 = icmp eq i64 %109, %84
  br i1 %110, label %113, label %97

111:
  %112 = phi i64 [ %92, %89 ], [ %88, %86 ]
  store i64 %112, ptr %81, align 8
  br label %113

113:
  %114 = add nuw nsw i64 %80, 1
  %115 = getelementptr i8, ptr %81, i64 8
  %116 = icmp eq i64 %114, %65
  br i1 %116, label %70, label %79

117:
  %118 = phi ptr [ %50, %70 ], [ %131, %121 ]
  %119 = add nuw nsw i64 %51, 1
  %120 = icmp eq i64 %119, %30
  br i1 %120, label %42, label %49

121:
  %122 = phi i64 [ 0, %75 ], [ %132, %121 ]
  %123 = phi ptr [ %50, %75 ], [ %131, %121 ]
  %124 = add i64 %78, %122
  %125 = getelementptr [0 x i64], ptr @smelt_tables, i64 0, i64 %124
  %126 = load i64, ptr %125, align 8
  %127 = getelementptr i64, ptr %76, i64 %126
  %128 = load i64, ptr %127, align 8
  %129 = add i64 %128, 63
  %130 = and i64 %129, -64
  %131 = getelementptr i8, ptr %123, i64 %130
  %132 = add nuw nsw i64 %122, 1
  %133 = icmp eq i64 %132, %73
  br i1 %133, label %117, label %121
}

define internal fastcc noundef i32 @run_launches(ptr nocapture noundef readonly %0, ptr nocapture noundef readonly %1, i64 noundef %2, i64 noundef %3, ptr noundef %4) unnamed_addr #5 {
  %6 = alloca %struct.run, align 8
  %7 = getelementptr inbounds i8, ptr %1, i64 64
  %8 = load ptr, ptr %7, align 8
  %9 = getelementptr %struct.launch, ptr %8, i64 %2
  %10 = icmp eq i64 %3, 0
  br i1 %10, label %54, label %11

11:
  %12 = getelementptr inbounds i8, ptr %0, i64 16
  %13 = load i64, ptr %12, align 8
  %14 = icmp sgt i64 %13, 1
  br i1 %14, label %15, label %39

15:
  %16 = atomicrmw add ptr @the_tokens, i64 1 seq_cst, align 8
  %17 = add i64 %16, 1
  %18 = getelementptr inbounds i8, ptr %1, i64 56
  %19 = load ptr, ptr %18, align 8
  %20 = getelementptr inbounds i8, ptr %1, i64 48
  %21 = load ptr, ptr %20, align 8
  %22 = getelementptr inbounds i8, ptr %1, i64 128
  %23 = load i64, ptr %22, align 8
  %24 = load i64, ptr %12, align 8
  %25 = tail call i32 @smelt_run(ptr noundef nonnull @the_pool, ptr noundef %19, ptr noundef %9, i64 noundef %3, ptr noundef %21, i64 noundef %23, i64 noundef %24, i64 noundef %17) #19
  %26 = icmp eq i32 %25, 3
  br i1 %26, label %27, label %36

27:
  %28 = load i64, ptr %22, align 8
  %29 = tail call fastcc zeroext i1 @set_up_pool(i64 noundef %28) #17
  br i1 %29, label %30, label %34

30:
  %31 = load ptr, ptr %18, align 8
  %32 = load ptr, ptr %20, align 8
  %33 = tail call i32 @smelt_drive(ptr noundef nonnull @the_pool, ptr noundef nonnull getelementptr inbounds (i8, ptr @the_pool, i64 1280), ptr noundef %31, ptr noundef %9, i64 noundef %3, ptr noundef %32) #19
  br label %36

34:
  store atomic i64 0, ptr getelementptr inbounds (i8, ptr @the_pool, i64 512) release, align 128
  %35 = load i64, ptr %22, align 8
  tail call fastcc void @no_memory(ptr noundef %4, i64 noundef %35) #17
  br label %54

36:
  %37 = phi i32 [ %25, %15 ], [ %33, %30 ]
  %38 = icmp eq i32 %37, 2
  br i1 %38, label %39, label %54

39:
  call void @llvm.lifetime.start.p0(i64 120, ptr nonnull %6) #18
  store i64 0, ptr %6, align 8
  %40 = getelementptr inbounds i8, ptr %6, i64 8
  store i64 0, ptr %40, align 8
  %41 = getelementptr inbounds i8, ptr %6, i64 48
  store i64 0, ptr %41, align 8
  %42 = getelementptr inbounds i8, ptr %6, i64 56
  store i64 1, ptr %42, align 8
  %43 = getelementptr inbounds i8, ptr %1, i64 96
  %44 = load ptr, ptr %43, align 8
  %45 = getelementptr inbounds i8, ptr %6, i64 64
  store ptr %44, ptr %45, align 8
  %46 = getelementptr inbounds i8, ptr %6, i64 72
  store i64 1, ptr %46, align 8
  %47 = getelementptr inbounds i8, ptr %6, i64 88
  store ptr @the_pool, ptr %47, align 8
  %48 = getelementptr inbounds i8, ptr %6, i64 80
  store atomic i64 0, ptr %48 monotonic, align 8
  %49 = getelementptr inbounds i8, ptr %1, i64 56
  %50 = load ptr, ptr %49, align 8
  %51 = getelementptr inbounds i8, ptr %1, i64 48
  %52 = load ptr, ptr %51, align 8
  %53 = call i32 @smelt_drive(ptr noundef nonnull @the_pool, ptr noundef nonnull %6, ptr noundef %50, ptr noundef %9, i64 noundef %3, ptr noundef %52) #19
  call void @llvm.lifetime.end.p0(i64 120, ptr nonnull %6) #18
  br label %54

54:
  %55 = phi i32 [ 5, %34 ], [ 0, %5 ], [ 0, %39 ], [ 0, %36 ]
  ret i32 %55
}

define internal fastcc i32 @repeat(ptr nocapture noundef readonly %0, ptr nocapture noundef readonly %1, ptr nocapture noundef readonly %2, ptr nocapture noundef readonly %3, ptr noundef %4, ptr noundef %5, ptr noundef %6) unnamed_addr #5 {
  %8 = getelementptr inbounds i8, ptr %3, i64 48
  %9 = load i64, ptr %8, align 8
  %10 = getelementptr i64, ptr @smelt_tables, i64 %9
  %11 = getelementptr inbounds i8, ptr %3, i64 64
  %12 = load i64, ptr %11, align 8
  %13 = getelementptr i64, ptr @smelt_tables, i64 %12
  %14 = getelementptr inbounds i8, ptr %1, i64 24
  %15 = load ptr, ptr %14, align 8
  %16 = getelementptr inbounds i8, ptr %3, i64 16
  %17 = load i64, ptr %16, align 8
  %18 = icmp sgt i64 %17, -1
  br i1 %18, label %19, label %22

19:
  %20 = getelementptr i64, ptr %15, i64 %17
  %21 = load i64, ptr %20, align 8
  br label %27

22:
  %23 = getelementptr inbounds i8, ptr %3, i64 24
  %24 = load i64, ptr %23, align 8
  %25 = icmp eq i64 %24, 0
  %26 = select i1 %25, i64 9223372036854775807, i64 1
  br label %27

27:
  %28 = phi i64 [ %21, %19 ], [ %26, %22 ]
  %29 = getelementptr inbounds i8, ptr %3, i64 40
  %30 = load i64, ptr %29, align 8
  %31 = getelementptr i64, ptr %15, i64 %30
  %32 = load i64, ptr %31, align 8
  %33 = add i64 %32, 63
  %34 = and i64 %33, -64
  %35 = getelementptr i8, ptr %5, i64 %34
  %36 = getelementptr inbounds i8, ptr %1, i64 80
  %37 = load ptr, ptr %36, align 8
  %38 = load i64, ptr %3, align 8
  %39 = getelementptr i64, ptr @smelt_tables, i64 %38
  %40 = getelementptr inbounds i8, ptr %39, i64 40
  %41 = load i64, ptr %40, align 8
  %42 = getelementptr ptr, ptr %37, i64 %41
  %43 = getelementptr inbounds i8, ptr %3, i64 80
  %44 = load i64, ptr %43, align 8
  %45 = icmp sgt i64 %44, 0
  br i1 %45, label %46, label %50

46:
  %47 = icmp sgt i64 %28, 0
  %48 = getelementptr inbounds i8, ptr %3, i64 32
  %49 = add nsw i64 %28, -1
  br label %52

50:
  %51 = icmp slt i64 %28, 1
  br i1 %51, label %78, label %79

52:
  %53 = phi i64 [ 0, %46 ], [ %75, %74 ]
  %54 = getelementptr %struct.lib_input, ptr %10, i64 %53
  %55 = load i64, ptr %54, align 8
  %56 = tail call fastcc ptr @address_of(ptr noundef %1, ptr noundef %2, i64 noundef %55, ptr noundef %4) #17
  %57 = getelementptr ptr, ptr %42, i64 %53
  store ptr %56, ptr %57, align 8
  %58 = getelementptr %struct.lib_step_result, ptr %13, i64 %53
  %59 = getelementptr inbounds i8, ptr %58, i64 16
  %60 = load i64, ptr %59, align 8
  %61 = icmp sgt i64 %60, -1
  %62 = select i1 %61, i1 %47, i1 false
  br i1 %62, label %63, label %74

63:
  %64 = load i64, ptr %48, align 8
  %65 = icmp eq i64 %64, 0
  %66 = select i1 %65, i64 0, i64 %49
  %67 = tail call fastcc ptr @address_of(ptr noundef %1, ptr noundef %2, i64 noundef %60, ptr noundef %4) #17
  %68 = getelementptr inbounds i8, ptr %58, i64 40
  %69 = load i64, ptr %68, align 8
  %70 = getelementptr i64, ptr %15, i64 %69
  %71 = load i64, ptr %70, align 8
  %72 = mul i64 %71, %66
  %73 = getelementptr i8, ptr %67, i64 %72
  tail call fastcc void @copy_pieces(ptr noundef %73, i64 noundef 0, ptr noundef %56, i64 noundef 1, i64 noundef %71) #17
  br label %74

74:
  %75 = add nuw nsw i64 %53, 1
  %76 = load i64, ptr %43, align 8
  %77 = icmp slt i64 %75, %76
  br i1 %77, label %52, label %50

78:
  tail call fastcc void @write_identities(ptr noundef %1, ptr noundef %2, ptr noundef nonnull %3, ptr noundef %4) #17
  br label %95

79:
  %80 = getelementptr inbounds i8, ptr %3, i64 32
  %81 = getelementptr inbounds i8, ptr %3, i64 56
  %82 = getelementptr inbounds i8, ptr %3, i64 72
  br label %86

83:
  %84 = icmp slt i64 %100, %28
  %85 = select i1 %152, i1 %84, i1 false
  br i1 %85, label %86, label %94

86:
  %87 = phi i64 [ 0, %79 ], [ %100, %83 ]
  %88 = load i64, ptr %16, align 8
  %89 = icmp sgt i64 %88, -1
  br i1 %89, label %99, label %90

90:
  %91 = load ptr, ptr %42, align 8
  %92 = load i8, ptr %91, align 1
  %93 = icmp eq i8 %92, 0
  br i1 %93, label %95, label %99

94:
  br i1 %152, label %95, label %218

95:
  %96 = phi i32 [ %151, %94 ], [ 0, %78 ], [ 0, %90 ]
  %97 = load i64, ptr %43, align 8
  %98 = icmp sgt i64 %97, 0
  br i1 %98, label %220, label %218

99:
  %100 = add nuw nsw i64 %87, 1
  %101 = icmp eq i64 %100, %28
  %102 = select i1 %101, i64 8, i64 0
  %103 = getelementptr inbounds i8, ptr %3, i64 %102
  %104 = load i64, ptr %103, align 8
  %105 = getelementptr i64, ptr @smelt_tables, i64 %104
  %106 = load i64, ptr %80, align 8
  %107 = icmp eq i64 %106, 0
  %108 = xor i64 %87, -1
  %109 = add nsw i64 %28, %108
  %110 = select i1 %107, i64 %87, i64 %109
  %111 = select i1 %107, i64 1, i64 -1
  %112 = add i64 %110, %111
  %113 = load ptr, ptr %36, align 8
  %114 = getelementptr inbounds i8, ptr %105, i64 40
  %115 = load i64, ptr %114, align 8
  %116 = getelementptr ptr, ptr %113, i64 %115
  %117 = load i64, ptr %81, align 8
  %118 = getelementptr ptr, ptr %116, i64 %117
  %119 = load i64, ptr %82, align 8
  %120 = getelementptr ptr, ptr %118, i64 %119
  %121 = load i64, ptr %43, align 8
  %122 = icmp slt i64 %121, %117
  br i1 %122, label %130, label %125

123:
  %124 = load i64, ptr %82, align 8
  br label %125

125:
  %126 = phi i64 [ %124, %123 ], [ %119, %99 ]
  %127 = icmp sgt i64 %126, 0
  br i1 %127, label %128, label %150

128:
  %129 = and i64 %87, 1
  br label %157

130:
  %131 = phi i64 [ %147, %144 ], [ %121, %99 ]
  %132 = getelementptr %struct.lib_input, ptr %10, i64 %131
  %133 = getelementptr inbounds i8, ptr %132, i64 8
  %134 = load i64, ptr %133, align 8
  %135 = getelementptr i64, ptr %15, i64 %134
  %136 = load i64, ptr %135, align 8
  %137 = mul i64 %136, %110
  %138 = load i64, ptr %132, align 8
  %139 = icmp slt i64 %138, 0
  br i1 %139, label %140, label %141

140:
  store i64 %137, ptr %5, align 8
  br label %144

141:
  %142 = tail call fastcc ptr @address_of(ptr noundef %1, ptr noundef %2, i64 noundef %138, ptr noundef %4) #17
  %143 = getelementptr i8, ptr %142, i64 %137
  br label %144

144:
  %145 = phi ptr [ %143, %141 ], [ %5, %140 ]
  %146 = getelementptr ptr, ptr %116, i64 %131
  store ptr %145, ptr %146, align 8
  %147 = add nsw i64 %131, 1
  %148 = load i64, ptr %81, align 8
  %149 = icmp slt i64 %147, %148
  br i1 %149, label %130, label %123

150:
  %151 = tail call fastcc i32 @run_body(ptr noundef %0, ptr noundef %1, ptr noundef %105, ptr noundef %35, ptr noundef %6) #17
  %152 = icmp eq i32 %151, 0
  br i1 %152, label %153, label %178

153:
  %154 = select i1 %101, i64 48, i64 40
  %155 = load i64, ptr %82, align 8
  %156 = icmp sgt i64 %155, 0
  br i1 %156, label %181, label %178

157:
  %158 = phi i64 [ 0, %128 ], [ %175, %172 ]
  %159 = load i64, ptr %43, align 8
  %160 = icmp slt i64 %158, %159
  %161 = getelementptr %struct.lib_step_result, ptr %13, i64 %158
  %162 = tail call fastcc ptr @target_of(ptr noundef %1, ptr noundef %2, ptr noundef %161, i1 noundef zeroext %160, i1 noundef zeroext %101, i64 noundef %110, i64 noundef %112, i64 noundef %129, ptr noundef %4, ptr noundef %5) #17
  %163 = getelementptr ptr, ptr %120, i64 %158
  store ptr %162, ptr %163, align 8
  br i1 %160, label %172, label %164

164:
  %165 = getelementptr inbounds i8, ptr %161, i64 32
  %166 = load i64, ptr %165, align 8
  %167 = icmp slt i64 %166, 0
  br i1 %167, label %172, label %168

168:
  %169 = getelementptr i64, ptr %15, i64 %166
  %170 = load i64, ptr %169, align 8
  %171 = getelementptr i8, ptr %5, i64 %170
  br label %172

172:
  %173 = phi ptr [ %171, %168 ], [ %162, %164 ], [ %162, %157 ]
  %174 = getelementptr ptr, ptr %118, i64 %158
  store ptr %173, ptr %174, align 8
  %175 = add nuw nsw i64 %158, 1
  %176 = load i64, ptr %82, align 8
  %177 = icmp slt i64 %175, %176
  br i1 %177, label %157, label %150

178:
  %179 = load i64, ptr %43, align 8
  %180 = icmp sgt i64 %179, 0
  br i1 %180, label %210, label %83

181:
  %182 = phi i64 [ %207, %206 ], [ 0, %153 ]
  %183 = getelementptr %struct.lib_step_result, ptr %13, i64 %182
  %184 = getelementptr inbounds i8, ptr %183, i64 24
  %185 = load i64, ptr %184, align 8
  %186 = tail call fastcc ptr @address_of(ptr noundef %1, ptr noundef %105, i64 noundef %185, ptr noundef %35) #17
  %187 = getelementptr inbounds i8, ptr %183, i64 56
  %188 = load i64, ptr %187, align 8
  %189 = getelementptr i64, ptr %15, i64 %188
  %190 = load i64, ptr %189, align 8
  %191 = getelementptr ptr, ptr %120, i64 %182
  %192 = load ptr, ptr %191, align 8
  %193 = icmp ne ptr %186, %192
  %194 = icmp ne i64 %190, 0
  %195 = select i1 %193, i1 %194, i1 false
  br i1 %195, label %196, label %206

196:
  %197 = getelementptr inbounds i8, ptr %183, i64 %154
  %198 = load i64, ptr %197, align 8
  %199 = getelementptr i64, ptr %15, i64 %198
  %200 = load i64, ptr %199, align 8
  %201 = getelementptr inbounds i8, ptr %183, i64 64
  %202 = load i64, ptr %201, align 8
  %203 = getelementptr i64, ptr %15, i64 %202
  %204 = load i64, ptr %203, align 8
  %205 = sdiv i64 %200, %190
  tail call fastcc void @copy_pieces(ptr noundef %192, i64 noundef %204, ptr noundef %186, i64 noundef %190, i64 noundef %205) #17
  br label %206

206:
  %207 = add nuw nsw i64 %182, 1
  %208 = load i64, ptr %82, align 8
  %209 = icmp slt i64 %207, %208
  br i1 %209, label %181, label %178

210:
  %211 = phi i64 [ %215, %210 ], [ 0, %178 ]
  %212 = getelementptr ptr, ptr %120, i64 %211
  %213 = load ptr, ptr %212, align 8
  %214 = getelementptr ptr, ptr %42, i64 %211
  store ptr %213, ptr %214, align 8
  %215 = add nuw nsw i64 %211, 1
  %216 = load i64, ptr %43, align 8
  %217 = icmp slt i64 %215, %216
  br i1 %217, label %210, label %83

218:
  %219 = phi i32 [ %151, %94 ], [ %96, %95 ], [ %96, %235 ]
  ret i32 %219

220:
  %221 = phi i64 [ %236, %235 ], [ 0, %95 ]
  %222 = getelementptr %struct.lib_step_result, ptr %13, i64 %221
  %223 = load i64, ptr %222, align 8
  %224 = icmp slt i64 %223, 0
  br i1 %224, label %235, label %225

225:
  %226 = tail call fastcc ptr @address_of(ptr noundef %1, ptr noundef %2, i64 noundef %223, ptr noundef %4) #17
  %227 = getelementptr ptr, ptr %42, i64 %221
  %228 = load ptr, ptr %227, align 8
  %229 = icmp eq ptr %226, %228
  br i1 %229, label %235, label %230

230:
  %231 = getelementptr inbounds i8, ptr %222, i64 40
  %232 = load i64, ptr %231, align 8
  %233 = getelementptr i64, ptr %15, i64 %232
  %234 = load i64, ptr %233, align 8
  tail call fastcc void @copy_pieces(ptr noundef %226, i64 noundef 0, ptr noundef %228, i64 noundef 1, i64 noundef %234) #17
  br label %235

235:
  %236 = add nuw nsw i64 %221, 1
  %237 = load i64, ptr %43, align 8
  %238 = icmp slt i64 %236, %237
  br i1 %238, label %220, label %218
}

declare hidden i32 @smelt_run(ptr noundef, ptr noundef, ptr noundef, i64 noundef, ptr noundef, i64 noundef, i64 noundef, i64 noundef) local_unnamed_addr #6

define internal fastcc zeroext i1 @set_up_pool(i64 noundef %0) unnamed_addr #5 {
  %2 = alloca ptr, align 8
  %3 = load atomic i32, ptr getelementptr inbounds (i8, ptr @the_pool, i64 640) monotonic, align 128
  %4 = sext i32 %3 to i64
  %5 = load i64, ptr getelementptr inbounds (i8, ptr @the_pool, i64 1352), align 8
  %6 = tail call i64 @llvm.smax.i64(i64 %5, i64 %4)
  %7 = load i64, ptr getelementptr inbounds (i8, ptr @the_pool, i64 648), align 8
  %8 = tail call i64 @llvm.smax.i64(i64 %7, i64 %0)
  %9 = tail call i64 @llvm.smax.i64(i64 %8, i64 65536)
  %10 = icmp slt i64 %6, 1
  br i1 %10, label %34, label %11

11:
  %12 = phi i64 [ %29, %28 ], [ %7, %1 ]
  %13 = phi i1 [ %31, %28 ], [ false, %1 ]
  %14 = phi i64 [ %30, %28 ], [ 0, %1 ]
  %15 = getelementptr [64 x ptr], ptr @the_scratch, i64 0, i64 %14
  %16 = load ptr, ptr %15, align 8
  %17 = icmp ne ptr %16, null
  %18 = icmp eq i64 %9, %12
  %19 = select i1 %17, i1 %18, i1 false
  br i1 %19, label %28, label %20

20:
  call void @llvm.lifetime.start.p0(i64 8, ptr nonnull %2) #18
  %21 = call i32 @posix_memalign(ptr noundef nonnull %2, i64 noundef 64, i64 noundef %9) #19
  %22 = icmp eq i32 %21, 0
  br i1 %22, label %23, label %33

23:
  %24 = load ptr, ptr %15, align 8
  call void @free(ptr noundef %24) #19
  %25 = load ptr, ptr %2, align 8
  store ptr %25, ptr %15, align 8
  %26 = getelementptr [64 x %struct.slot], ptr getelementptr inbounds (i8, ptr @the_pool, i64 1408), i64 0, i64 %14, i32 3
  store ptr %25, ptr %26, align 16
  call void @llvm.lifetime.end.p0(i64 8, ptr nonnull %2) #18
  %27 = load i64, ptr getelementptr inbounds (i8, ptr @the_pool, i64 648), align 8
  br label %28

28:
  %29 = phi i64 [ %27, %23 ], [ %9, %11 ]
  %30 = add nuw nsw i64 %14, 1
  %31 = icmp sge i64 %30, %6
  %32 = icmp eq i64 %30, %6
  br i1 %32, label %34, label %11

33:
  store i64 0, ptr getelementptr inbounds (i8, ptr @the_pool, i64 648), align 8
  call void @llvm.lifetime.end.p0(i64 8, ptr nonnull %2) #18
  br label %40

34:
  %35 = phi i1 [ true, %1 ], [ %31, %28 ]
  store i64 %9, ptr getelementptr inbounds (i8, ptr @the_pool, i64 648), align 8
  %36 = load ptr, ptr @the_scratch, align 16
  store ptr %36, ptr getelementptr inbounds (i8, ptr @the_pool, i64 1344), align 64
  %37 = icmp sgt i64 %5, %4
  br i1 %37, label %38, label %40

38:
  %39 = trunc i64 %6 to i32
  store atomic i32 %39, ptr getelementptr inbounds (i8, ptr @the_pool, i64 640) seq_cst, align 128
  store atomic i32 0, ptr getelementptr inbounds (i8, ptr @the_pool, i64 644) seq_cst, align 4
  br label %40

40:
  %41 = phi i1 [ %13, %33 ], [ %35, %34 ], [ %35, %38 ]
  ret i1 %41
}

declare hidden i32 @smelt_drive(ptr noundef, ptr noundef, ptr noundef, ptr noundef, i64 noundef, ptr noundef) local_unnamed_addr #6

define internal fastcc void @copy_pieces(ptr noundef %0, i64 noundef %1, ptr noundef %2, i64 noundef %3, i64 noundef %4) unnamed_addr #5 {
  %6 = icmp sgt i64 %4, 0
  %7 = icmp sgt i64 %3, 0
  %8 = and i1 %6, %7
  br i1 %8, label %10, label %9

9:
  ret void

10:
  %11 = phi i64 [ %17, %10 ], [ 0, %5 ]
  %12 = mul i64 %11, %1
  %13 = getelementptr i8, ptr %0, i64 %12
  %14 = mul i64 %11, %4
  %15 = getelementptr i8, ptr %2, i64 %14
  %16 = tail call ptr @memcpy(ptr noundef %13, ptr noundef %15, i64 noundef %4) #19
  %17 = add nuw nsw i64 %11, 1
  %18 = icmp slt i64 %17, %3
  br i1 %18, label %10, label %9
}

define internal fastcc void @write_identities(ptr nocapture noundef readonly %0, ptr nocapture noundef readonly %1, ptr nocapture noundef readonly %2, ptr noundef %3) unnamed_addr #5 {
  %5 = getelementptr inbounds i8, ptr %2, i64 64
  %6 = load i64, ptr %5, align 8
  %7 = getelementptr i64, ptr @smelt_tables, i64 %6
  %8 = getelementptr inbounds i8, ptr %2, i64 72
  %9 = load i64, ptr %8, align 8
  %10 = icmp sgt i64 %9, 0
  br i1 %10, label %11, label %13

11:
  %12 = getelementptr inbounds i8, ptr %0, i64 24
  br label %14

13:
  ret void

14:
  %15 = phi i64 [ %9, %11 ], [ %36, %35 ]
  %16 = phi i64 [ 0, %11 ], [ %37, %35 ]
  %17 = getelementptr %struct.lib_step_result, ptr %7, i64 %16
  %18 = getelementptr inbounds i8, ptr %17, i64 80
  %19 = load i64, ptr %18, align 8
  %20 = icmp eq i64 %19, 0
  br i1 %20, label %35, label %21

21:
  %22 = getelementptr inbounds i8, ptr %17, i64 40
  %23 = load i64, ptr %22, align 8
  %24 = getelementptr inbounds i8, ptr %17, i64 72
  %25 = load ptr, ptr %12, align 8
  %26 = getelementptr i64, ptr %25, i64 %23
  %27 = load i64, ptr %26, align 8
  %28 = icmp sgt i64 %27, 0
  br i1 %28, label %29, label %33

29:
  %30 = load i64, ptr %17, align 8
  %31 = load i64, ptr %24, align 8
  %32 = getelementptr i8, ptr @smelt_image, i64 %31
  br label %39

33:
  %34 = load i64, ptr %8, align 8
  br label %35

35:
  %36 = phi i64 [ %34, %33 ], [ %15, %14 ]
  %37 = add nuw nsw i64 %16, 1
  %38 = icmp slt i64 %37, %36
  br i1 %38, label %14, label %13

39:
  %40 = phi i64 [ %44, %39 ], [ 0, %29 ]
  %41 = tail call fastcc ptr @address_of(ptr noundef nonnull %0, ptr noundef %1, i64 noundef %30, ptr noundef %3) #17
  %42 = getelementptr i8, ptr %41, i64 %40
  %43 = tail call ptr @memcpy(ptr noundef %42, ptr noundef %32, i64 noundef %19) #19
  %44 = add i64 %19, %40
  %45 = load ptr, ptr %12, align 8
  %46 = getelementptr i64, ptr %45, i64 %23
  %47 = load i64, ptr %46, align 8
  %48 = icmp slt i64 %44, %47
  br i1 %48, label %39, label %33
}

define internal fastcc ptr @target_of(ptr nocapture noundef readonly %0, ptr nocapture noundef readonly %1, ptr nocapture noundef readonly %2, i1 noundef zeroext %3, i1 noundef zeroext %4, i64 noundef %5, i64 noundef %6, i64 noundef %7, ptr noundef readnone %8, ptr noundef readnone %9) unnamed_addr #13 {
  %11 = getelementptr inbounds i8, ptr %0, i64 24
  %12 = load ptr, ptr %11, align 8
  br i1 %3, label %22, label %13

13:
  %14 = load i64, ptr %2, align 8
  %15 = tail call fastcc ptr @address_of(ptr noundef nonnull %0, ptr noundef %1, i64 noundef %14, ptr noundef %8) #17
  %16 = getelementptr inbounds i8, ptr %2, i64 8
  %17 = load i64, ptr %16, align 8
  %18 = getelementptr i64, ptr %12, i64 %17
  %19 = load i64, ptr %18, align 8
  %20 = mul i64 %19, %5
  %21 = getelementptr i8, ptr %15, i64 %20
  br label %54

22:
  br i1 %4, label %23, label %28

23:
  %24 = load i64, ptr %2, align 8
  %25 = icmp sgt i64 %24, -1
  br i1 %25, label %26, label %40

26:
  %27 = tail call fastcc ptr @address_of(ptr noundef nonnull %0, ptr noundef %1, i64 noundef %24, ptr noundef %8) #17
  br label %54

28:
  %29 = getelementptr inbounds i8, ptr %2, i64 16
  %30 = load i64, ptr %29, align 8
  %31 = icmp sgt i64 %30, -1
  br i1 %31, label %32, label %40

32:
  %33 = tail call fastcc ptr @address_of(ptr noundef nonnull %0, ptr noundef %1, i64 noundef %30, ptr noundef %8) #17
  %34 = getelementptr inbounds i8, ptr %2, i64 40
  %35 = load i64, ptr %34, align 8
  %36 = getelementptr i64, ptr %12, i64 %35
  %37 = load i64, ptr %36, align 8
  %38 = mul i64 %37, %6
  %39 = getelementptr i8, ptr %33, i64 %38
  br label %54

40:
  %41 = getelementptr inbounds i8, ptr %2, i64 32
  %42 = load i64, ptr %41, align 8
  %43 = getelementptr i64, ptr %12, i64 %42
  %44 = load i64, ptr %43, align 8
  %45 = getelementptr i8, ptr %9, i64 %44
  %46 = getelementptr inbounds i8, ptr %2, i64 40
  %47 = load i64, ptr %46, align 8
  %48 = getelementptr i64, ptr %12, i64 %47
  %49 = load i64, ptr %48, align 8
  %50 = add i64 %49, 63
  %51 = and i64 %50, -64
  %52 = mul nuw nsw i64 %51, %7
  %53 = getelementptr i8, ptr %45, i64 %52
  br label %54

54:
  %55 = phi ptr [ %27, %26 ], [ %53, %40 ], [ %39, %32 ], [ %21, %13 ]
  ret ptr %55
}

declare ptr @memcpy(ptr noundef, ptr noundef, i64 noundef) local_unnamed_addr #6

declare i64 @llvm.smin.i64(i64, i64) #16

declare i64 @llvm.smax.i64(i64, i64) #16

declare i64 @llvm.abs.i64(i64, i1 immarg) #16

declare i64 @llvm.umin.i64(i64, i64) #16

attributes #0 = { mustprogress nofree norecurse nosync nounwind willreturn memory(none) "no-builtins" "no-jump-tables"="true" }
attributes #1 = { mustprogress nofree norecurse nosync nounwind willreturn memory(read, inaccessiblemem: none) "no-builtins" "no-jump-tables"="true" }
attributes #2 = { nounwind "no-builtins" "no-jump-tables"="true" }
attributes #3 = { mustprogress nocallback nofree nosync nounwind willreturn memory(argmem: readwrite) }
attributes #4 = { nofree noinline norecurse nosync nounwind memory(read, argmem: readwrite, inaccessiblemem: none) "no-builtins" "no-jump-tables"="true" }
attributes #5 = { noinline nounwind "no-builtins" "no-jump-tables"="true" }
attributes #6 = { "no-builtins" }
attributes #7 = { nofree noinline norecurse nosync nounwind memory(read, inaccessiblemem: none) "no-builtins" "no-jump-tables"="true" }
attributes #8 = { mustprogress nocallback nofree nounwind willreturn memory(argmem: write) }
attributes #9 = { nofree noinline norecurse nosync nounwind memory(readwrite, inaccessiblemem: none) "no-builtins" "no-jump-tables"="true" }
attributes #10 = { mustprogress nocallback nofree nounwind willreturn memory(argmem: readwrite) }
attributes #11 = { nofree noinline norecurse nosync nounwind memory(argmem: read) "no-builtins" "no-jump-tables"="true" }
attributes #12 = { mustprogress nocallback nofree nosync nounwind speculatable willreturn memory(none) }
attributes #13 = { mustprogress nofree noinline norecurse nosync nounwind willreturn memory(read, inaccessiblemem: none) "no-builtins" "no-jump-tables"="true" }
attributes #14 = { nofree noinline norecurse nosync nounwind memory(argmem: readwrite) "no-builtins" "no-jump-tables"="true" }
attributes #15 = { nofree noinline nosync nounwind memory(readwrite, inaccessiblemem: none) "no-builtins" "no-jump-tables"="true" }
attributes #16 = { nocallback nofree nosync nounwind speculatable willreturn memory(none) }
attributes #17 = { nobuiltin "no-builtins" }
attributes #18 = { nounwind }
attributes #19 = { nobuiltin nounwind "no-builtins" }
