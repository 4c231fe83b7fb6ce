%struct.chunk = type { ptr, i64, i64, i64 }
%struct.launch = type { i64, i64, i64, i64 }
%struct.slot = type { i32, i32, ptr, ptr, i64, [96 x i8] }

define void @smelt_wake(ptr noundef %0) local_unnamed_addr #0 {
  %2 = getelementptr inbounds i8, ptr %0, i64 384
  %3 = atomicrmw add ptr %2, i32 1 seq_cst, align 128
  tail call fastcc void @wake_on(ptr noundef %0, ptr noundef nonnull %2, i32 noundef 2147483647) #5
  ret void
}

define internal fastcc void @wake_on(ptr noundef %0, ptr noundef %1, i32 noundef %2) unnamed_addr #1 {
  %4 = getelementptr inbounds i8, ptr %0, i64 688
  %5 = load i64, ptr %4, align 16
  %6 = icmp eq i64 %5, 0
  br i1 %6, label %12, label %7

7:
  %8 = getelementptr inbounds i8, ptr %0, i64 728
  %9 = load ptr, ptr %8, align 8
  %10 = sext i32 %2 to i64
  %11 = tail call i64 (i64, ...) %9(i64 noundef %5, ptr noundef %1, i64 noundef 129, i64 noundef %10, ptr noundef null, ptr noundef null, i64 noundef 0) #6
  br label %24

12:
  %13 = getelementptr inbounds i8, ptr %0, i64 792
  %14 = load ptr, ptr %13, align 8
  %15 = getelementptr inbounds i8, ptr %0, i64 1024
  %16 = tail call i32 %14(ptr noundef nonnull %15) #6
  %17 = getelementptr inbounds i8, ptr %0, i64 816
  %18 = load ptr, ptr %17, align 16
  %19 = getelementptr inbounds i8, ptr %0, i64 1152
  %20 = tail call i32 %18(ptr noundef nonnull %19) #6
  %21 = getelementptr inbounds i8, ptr %0, i64 800
  %22 = load ptr, ptr %21, align 32
  %23 = tail call i32 %22(ptr noundef nonnull %15) #6
  br label %24

24:
  ret void
}

define range(i32 0, 2) i32 @smelt_poll(ptr nocapture noundef readonly %0) local_unnamed_addr #0 {
  %2 = getelementptr inbounds i8, ptr %0, i64 16
  %3 = load ptr, ptr %2, align 8
  %4 = getelementptr inbounds i8, ptr %0, i64 8
  %5 = load i64, ptr %4, align 8
  %6 = tail call ptr %3(i64 noundef %5) #6
  %7 = ptrtoint ptr %6 to i64
  %8 = and i64 %7, -2
  %9 = inttoptr i64 %8 to ptr
  %10 = icmp eq i64 %8, 0
  br i1 %10, label %36, label %11

11:
  %12 = getelementptr inbounds i8, ptr %9, i64 80
  %13 = load atomic i64, ptr %12 monotonic, align 8
  %14 = icmp eq i64 %13, 0
  br i1 %14, label %15, label %36

15:
  %16 = and i64 %7, 1
  %17 = icmp eq i64 %16, 0
  br i1 %17, label %18, label %36

18:
  %19 = getelementptr inbounds i8, ptr %9, i64 88
  %20 = load ptr, ptr %19, align 8
  %21 = tail call fastcc zeroext i1 @due(ptr noundef %20, ptr noundef nonnull %9) #5
  br i1 %21, label %22, label %36

22:
  %23 = load ptr, ptr %19, align 8
  %24 = getelementptr inbounds i8, ptr %23, i64 872
  %25 = load ptr, ptr %24, align 8
  %26 = tail call i64 %25() #6
  %27 = load ptr, ptr %19, align 8
  %28 = getelementptr inbounds i8, ptr %27, i64 880
  %29 = load i64, ptr %28, align 16
  %30 = icmp eq i64 %26, %29
  br i1 %30, label %33, label %31

31:
  %32 = getelementptr inbounds i8, ptr %9, i64 48
  store i64 9223372036854775807, ptr %32, align 8
  br label %36

33:
  %34 = tail call fastcc zeroext i1 @handle_signals(ptr noundef nonnull %27, ptr noundef nonnull %9) #5
  br i1 %34, label %35, label %36

35:
  store atomic i64 1, ptr %12 monotonic, align 8
  br label %36

36:
  %37 = phi i32 [ 0, %31 ], [ 1, %35 ], [ 0, %1 ], [ 1, %11 ], [ 0, %18 ], [ 0, %15 ], [ 0, %33 ]
  ret i32 %37
}

declare void @llvm.lifetime.start.p0(i64 immarg, ptr nocapture) #2

define internal fastcc zeroext i1 @due(ptr nocapture noundef readonly %0, ptr nocapture noundef %1) unnamed_addr #1 {
  %3 = alloca [2 x i64], align 16
  %4 = getelementptr inbounds i8, ptr %0, i64 664
  %5 = load i64, ptr %4, align 8
  %6 = icmp eq i64 %5, 0
  br i1 %6, label %27, label %7

7:
  call void @llvm.lifetime.start.p0(i64 16, ptr nonnull %3) #7
  %8 = getelementptr inbounds i8, ptr %0, i64 720
  %9 = load ptr, ptr %8, align 16
  %10 = getelementptr inbounds i8, ptr %0, i64 696
  %11 = load i64, ptr %10, align 8
  %12 = trunc i64 %11 to i32
  %13 = call i32 %9(i32 noundef %12, ptr noundef nonnull %3) #6
  %14 = load i64, ptr %3, align 16
  %15 = mul i64 %14, 1000000000
  %16 = getelementptr inbounds i8, ptr %3, i64 8
  %17 = load i64, ptr %16, align 8
  %18 = add i64 %15, %17
  call void @llvm.lifetime.end.p0(i64 16, ptr nonnull %3) #7
  %19 = getelementptr inbounds i8, ptr %1, i64 48
  %20 = load i64, ptr %19, align 8
  %21 = icmp ne i64 %20, 0
  %22 = icmp sle i64 %18, %20
  %23 = select i1 %21, i1 %22, i1 false
  br i1 %23, label %27, label %24

24:
  %25 = load i64, ptr %4, align 8
  %26 = add i64 %25, %18
  store i64 %26, ptr %19, align 8
  br label %27

27:
  %28 = phi i1 [ false, %2 ], [ %21, %24 ], [ false, %7 ]
  ret i1 %28
}

define internal fastcc zeroext i1 @handle_signals(ptr nocapture noundef readonly %0, ptr noundef %1) unnamed_addr #1 {
  %3 = getelementptr inbounds i8, ptr %0, i64 888
  %4 = load ptr, ptr %3, align 8
  %5 = tail call i32 %4() #6
  %6 = getelementptr inbounds i8, ptr %0, i64 904
  %7 = load ptr, ptr %6, align 8
  %8 = tail call i32 %7() #6
  %9 = icmp eq i32 %8, 0
  br i1 %9, label %18, label %10

10:
  %11 = getelementptr inbounds i8, ptr %0, i64 912
  %12 = load ptr, ptr %11, align 16
  %13 = getelementptr inbounds i8, ptr %1, i64 96
  %14 = getelementptr i8, ptr %1, i64 104
  %15 = getelementptr i8, ptr %1, i64 112
  tail call void %12(ptr noundef nonnull %13, ptr noundef %14, ptr noundef %15) #6
  %16 = getelementptr inbounds i8, ptr %0, i64 896
  %17 = load ptr, ptr %16, align 128
  tail call void %17(i32 noundef %5) #6
  br label %24

18:
  %19 = getelementptr inbounds i8, ptr %0, i64 896
  %20 = load ptr, ptr %19, align 128
  tail call void %20(i32 noundef %5) #6
  %21 = getelementptr inbounds i8, ptr %0, i64 920
  %22 = load i64, ptr %21, align 8
  %23 = icmp ne i64 %22, 0
  br label %24

24:
  %25 = phi i1 [ true, %10 ], [ %23, %18 ]
  ret i1 %25
}

declare void @llvm.lifetime.end.p0(i64 immarg, ptr nocapture) #2

define noundef ptr @smelt_helper(ptr nocapture noundef %0) local_unnamed_addr #0 {
  %2 = alloca [2 x i64], align 16
  %3 = alloca [2 x i64], align 16
  %4 = alloca [16 x i64], align 16
  %5 = getelementptr inbounds i8, ptr %0, i64 8
  %6 = load ptr, ptr %5, align 8
  call void @llvm.lifetime.start.p0(i64 128, ptr nonnull %4) #7
  %7 = getelementptr i8, ptr %6, i64 1281
  %8 = getelementptr inbounds i8, ptr %6, i64 856
  %9 = load ptr, ptr %8, align 8
  %10 = getelementptr inbounds i8, ptr %6, i64 848
  %11 = load i64, ptr %10, align 16
  %12 = tail call ptr %9(i64 noundef %11) #6
  %13 = getelementptr inbounds i8, ptr %6, i64 864
  %14 = load ptr, ptr %13, align 32
  %15 = load i64, ptr %10, align 16
  %16 = tail call i32 %14(i64 noundef %15, ptr noundef %7) #6
  br label %21

17:
  %18 = getelementptr inbounds i8, ptr %6, i64 832
  %19 = load ptr, ptr %18, align 64
  %20 = icmp eq ptr %19, null
  br i1 %20, label %28, label %26

21:
  %22 = phi i64 [ 0, %1 ], [ %24, %21 ]
  %23 = getelementptr [16 x i64], ptr %4, i64 0, i64 %22
  store i64 0, ptr %23, align 8
  %24 = add nuw nsw i64 %22, 1
  %25 = icmp eq i64 %24, 16
  br i1 %25, label %17, label %21

26:
  %27 = call i32 %19(i32 noundef 0, i64 noundef 128, ptr noundef nonnull %4) #6
  br label %28

28:
  %29 = getelementptr inbounds i8, ptr %6, i64 720
  %30 = getelementptr inbounds i8, ptr %6, i64 696
  %31 = getelementptr inbounds i8, ptr %3, i64 8
  %32 = getelementptr inbounds i8, ptr %0, i64 4
  %33 = getelementptr inbounds i8, ptr %6, i64 640
  %34 = getelementptr inbounds i8, ptr %6, i64 276
  %35 = getelementptr inbounds i8, ptr %6, i64 824
  %36 = getelementptr inbounds i8, ptr %6, i64 272
  %37 = getelementptr inbounds i8, ptr %6, i64 256
  %38 = getelementptr inbounds i8, ptr %6, i64 264
  %39 = getelementptr inbounds i8, ptr %2, i64 8
  %40 = getelementptr inbounds i8, ptr %6, i64 656
  %41 = getelementptr inbounds i8, ptr %0, i64 16
  %42 = getelementptr inbounds i8, ptr %0, i64 24
  %43 = getelementptr inbounds i8, ptr %6, i64 128
  %44 = getelementptr inbounds i8, ptr %6, i64 132
  %45 = getelementptr inbounds i8, ptr %6, i64 384
  %46 = getelementptr inbounds i8, ptr %6, i64 388
  br label %47

47:
  call void @llvm.lifetime.start.p0(i64 16, ptr nonnull %3) #7
  %48 = load ptr, ptr %29, align 16
  %49 = load i64, ptr %30, align 8
  %50 = trunc i64 %49 to i32
  %51 = call i32 %48(i32 noundef %50, ptr noundef nonnull %3) #6
  %52 = load i64, ptr %3, align 16
  %53 = load i64, ptr %31, align 8
  call void @llvm.lifetime.end.p0(i64 16, ptr nonnull %3) #7
  %54 = load i32, ptr %32, align 4
  %55 = load atomic i32, ptr %33 acquire, align 128
  %56 = icmp slt i32 %54, %55
  br i1 %56, label %65, label %57

57:
  store atomic i32 0, ptr %0 seq_cst, align 128
  %58 = load i32, ptr %32, align 4
  %59 = load atomic i32, ptr %33 seq_cst, align 128
  %60 = icmp slt i32 %58, %59
  br i1 %60, label %61, label %163

61:
  %62 = cmpxchg ptr %0, i32 0, i32 1 seq_cst seq_cst, align 128
  %63 = freeze { i32, i1 } %62
  %64 = extractvalue { i32, i1 } %63, 1
  br i1 %64, label %162, label %163

65:
  %66 = phi i32 [ %127, %126 ], [ 0, %47 ]
  br label %67

67:
  %68 = load atomic i64, ptr %6 acquire, align 128
  %69 = and i64 %68, 65535
  %70 = icmp eq i64 %69, 0
  br i1 %70, label %123, label %71

71:
  %72 = load i32, ptr %32, align 4
  %73 = load atomic i32, ptr %34 monotonic, align 4
  %74 = icmp slt i32 %72, %73
  br i1 %74, label %75, label %123

75:
  %76 = load ptr, ptr %35, align 8
  %77 = icmp eq ptr %76, null
  br i1 %77, label %92, label %78

78:
  %79 = call i32 %76() #6
  %80 = icmp sgt i32 %79, -1
  br i1 %80, label %81, label %92

81:
  %82 = load atomic i32, ptr %36 monotonic, align 16
  %83 = icmp eq i32 %79, %82
  br i1 %83, label %84, label %92

84:
  call fastcc void @exclude(ptr noundef nonnull %6, ptr noundef nonnull %4, i32 noundef %79) #5
  call fastcc void @widen(ptr noundef nonnull %6, ptr noundef nonnull %4) #5
  %85 = load atomic i64, ptr %6 acquire, align 128
  %86 = and i64 %85, 65535
  %87 = icmp eq i64 %86, 0
  br i1 %87, label %162, label %88

88:
  %89 = load i32, ptr %32, align 4
  %90 = load atomic i32, ptr %34 monotonic, align 4
  %91 = icmp slt i32 %89, %90
  br i1 %91, label %92, label %162

92:
  %93 = phi i64 [ %85, %88 ], [ %68, %81 ], [ %68, %78 ], [ %68, %75 ]
  %94 = load atomic i64, ptr %37 monotonic, align 128
  %95 = load atomic i64, ptr %38 monotonic, align 8
  %96 = add i64 %93, -1
  %97 = cmpxchg ptr %6, i64 %93, i64 %96 acq_rel monotonic, align 128
  %98 = extractvalue { i64, i1 } %97, 1
  br i1 %98, label %99, label %67

99:
  %100 = inttoptr i64 %95 to ptr
  %101 = inttoptr i64 %94 to ptr
  %102 = lshr i64 %93, 16
  %103 = and i64 %102, 65535
  %104 = getelementptr %struct.chunk, ptr %101, i64 %103
  %105 = and i64 %93, 65535
  %106 = getelementptr %struct.chunk, ptr %104, i64 %105
  %107 = getelementptr i8, ptr %106, i64 -32
  %108 = load ptr, ptr %41, align 16
  %109 = load ptr, ptr %107, align 8
  %110 = getelementptr i8, ptr %106, i64 -24
  %111 = load i64, ptr %110, align 8
  %112 = getelementptr i8, ptr %100, i64 %111
  %113 = getelementptr i8, ptr %106, i64 -16
  %114 = load i64, ptr %113, align 8
  %115 = getelementptr i8, ptr %106, i64 -8
  %116 = load i64, ptr %115, align 8
  call void %109(ptr noundef %112, i64 noundef %114, i64 noundef %116, ptr noundef %108) #6
  %117 = load atomic i64, ptr %42 monotonic, align 8
  %118 = add i64 %117, 1
  store atomic i64 %118, ptr %42 monotonic, align 8
  %119 = atomicrmw add ptr %43, i32 1 seq_cst, align 128
  %120 = load atomic i32, ptr %44 seq_cst, align 4
  %121 = icmp eq i32 %120, 0
  br i1 %121, label %162, label %122

122:
  call fastcc void @wake_on(ptr noundef nonnull %6, ptr noundef nonnull %43, i32 noundef 1) #5
  br label %162

123:
  call void @smelt_relax() #6
  %124 = add i32 %66, 1
  %125 = icmp slt i32 %124, 65
  br i1 %125, label %126, label %131

126:
  %127 = phi i32 [ %124, %123 ], [ 0, %131 ]
  %128 = load i32, ptr %32, align 4
  %129 = load atomic i32, ptr %33 acquire, align 128
  %130 = icmp slt i32 %128, %129
  br i1 %130, label %65, label %57

131:
  call void @llvm.lifetime.start.p0(i64 16, ptr nonnull %2) #7
  %132 = load ptr, ptr %29, align 16
  %133 = load i64, ptr %30, align 8
  %134 = trunc i64 %133 to i32
  %135 = call i32 %132(i32 noundef %134, ptr noundef nonnull %2) #6
  %136 = load i64, ptr %2, align 16
  %137 = load i64, ptr %39, align 8
  call void @llvm.lifetime.end.p0(i64 16, ptr nonnull %2) #7
  %138 = sub i64 %136, %52
  %139 = mul i64 %138, 1000000000
  %140 = sub i64 %137, %53
  %141 = add i64 %140, %139
  %142 = load i64, ptr %40, align 16
  %143 = icmp sgt i64 %141, %142
  br i1 %143, label %144, label %126

144:
  %145 = load atomic i32, ptr %45 seq_cst, align 128
  %146 = atomicrmw add ptr %46, i32 1 seq_cst, align 4
  %147 = load atomic i64, ptr %6 seq_cst, align 128
  %148 = load i32, ptr %32, align 4
  %149 = load atomic i32, ptr %33 seq_cst, align 128
  %150 = icmp slt i32 %148, %149
  br i1 %150, label %151, label %160

151:
  %152 = and i64 %147, 65535
  %153 = icmp eq i64 %152, 0
  br i1 %153, label %158, label %154

154:
  %155 = load i32, ptr %32, align 4
  %156 = load atomic i32, ptr %34 monotonic, align 4
  %157 = icmp slt i32 %155, %156
  br i1 %157, label %160, label %158

158:
  %159 = load atomic i32, ptr %36 monotonic, align 16
  call fastcc void @exclude(ptr noundef nonnull %6, ptr noundef nonnull %4, i32 noundef %159) #5
  call fastcc void @sleep_on(ptr noundef nonnull %6, ptr noundef nonnull %45, i32 noundef %145, i64 noundef 0) #5
  call fastcc void @widen(ptr noundef nonnull %6, ptr noundef nonnull %4) #5
  br label %160

160:
  %161 = atomicrmw add ptr %46, i32 -1 seq_cst, align 4
  br label %162

162:
  br label %47

163:
  call void @llvm.lifetime.end.p0(i64 128, ptr nonnull %4) #7
  ret ptr null
}

declare void @smelt_relax() local_unnamed_addr #3

define noundef i32 @smelt_drive(ptr noundef %0, ptr noundef %1, ptr noundef %2, ptr nocapture noundef readonly %3, i64 noundef %4, ptr noundef %5) local_unnamed_addr #0 {
  %7 = getelementptr inbounds i8, ptr %0, i64 856
  %8 = load ptr, ptr %7, align 8
  %9 = getelementptr inbounds i8, ptr %0, i64 848
  %10 = load i64, ptr %9, align 16
  %11 = tail call ptr %8(i64 noundef %10) #6
  %12 = getelementptr inbounds i8, ptr %0, i64 864
  %13 = load ptr, ptr %12, align 32
  %14 = load i64, ptr %9, align 16
  %15 = tail call i32 %13(i64 noundef %14, ptr noundef %1) #6
  %16 = getelementptr inbounds i8, ptr %1, i64 32
  %17 = getelementptr inbounds i8, ptr %1, i64 40
  %18 = getelementptr inbounds i8, ptr %0, i64 128
  %19 = getelementptr inbounds i8, ptr %0, i64 132
  %20 = getelementptr inbounds i8, ptr %0, i64 256
  %21 = getelementptr inbounds i8, ptr %1, i64 64
  %22 = getelementptr inbounds i8, ptr %1, i64 80
  %23 = getelementptr inbounds i8, ptr %0, i64 824
  %24 = getelementptr inbounds i8, ptr %0, i64 272
  %25 = getelementptr inbounds i8, ptr %1, i64 16
  %26 = getelementptr inbounds i8, ptr %1, i64 24
  %27 = getelementptr inbounds i8, ptr %0, i64 672
  %28 = getelementptr inbounds i8, ptr %1, i64 72
  %29 = getelementptr inbounds i8, ptr %0, i64 264
  %30 = ptrtoint ptr %5 to i64
  %31 = getelementptr inbounds i8, ptr %0, i64 276
  %32 = getelementptr inbounds i8, ptr %0, i64 388
  %33 = getelementptr inbounds i8, ptr %0, i64 384
  %34 = getelementptr inbounds i8, ptr %0, i64 640
  %35 = getelementptr inbounds i8, ptr %1, i64 8
  %36 = getelementptr inbounds i8, ptr %1, i64 56
  %37 = getelementptr inbounds i8, ptr %0, i64 644
  br label %38

38:
  %39 = load i64, ptr %1, align 8
  switch i64 %39, label %221 [
    i64 0, label %44
    i64 1, label %40
    i64 2, label %107
    i64 3, label %150
    i64 4, label %199
  ]

40:
  %41 = load ptr, ptr %25, align 8
  %42 = load ptr, ptr %26, align 8
  %43 = icmp eq ptr %41, %42
  br i1 %43, label %102, label %78

44:
  %45 = load i64, ptr %35, align 8
  %46 = icmp slt i64 %45, %4
  br i1 %46, label %52, label %47

47:
  %48 = load i64, ptr %36, align 8
  %49 = icmp eq i64 %48, 0
  br i1 %49, label %50, label %222

50:
  %51 = getelementptr inbounds i8, ptr %0, i64 512
  store atomic i64 0, ptr %51 release, align 128
  br label %222

52:
  %53 = add nsw i64 %45, 1
  store i64 %53, ptr %35, align 8
  %54 = getelementptr %struct.launch, ptr %3, i64 %45
  %55 = load i64, ptr %54, align 8
  %56 = getelementptr %struct.chunk, ptr %2, i64 %55
  store ptr %56, ptr %25, align 8
  %57 = getelementptr inbounds i8, ptr %54, i64 8
  %58 = load i64, ptr %57, align 8
  %59 = getelementptr %struct.chunk, ptr %56, i64 %58
  store ptr %59, ptr %26, align 8
  store i64 1, ptr %1, align 8
  %60 = getelementptr inbounds i8, ptr %54, i64 16
  %61 = load i64, ptr %60, align 8
  %62 = and i64 %61, 1
  %63 = icmp eq i64 %62, 0
  br i1 %63, label %221, label %64

64:
  %65 = load i64, ptr %57, align 8
  %66 = icmp sgt i64 %65, 1
  br i1 %66, label %67, label %221

67:
  %68 = load i64, ptr %28, align 8
  %69 = icmp sgt i64 %68, 1
  br i1 %69, label %70, label %221

70:
  %71 = load i64, ptr %36, align 8
  %72 = icmp eq i64 %71, 0
  br i1 %72, label %73, label %221

73:
  store i64 2, ptr %1, align 8
  %74 = load atomic i32, ptr %37 monotonic, align 4
  %75 = load atomic i32, ptr %34 monotonic, align 128
  %76 = icmp eq i32 %74, %75
  br i1 %76, label %221, label %77

77:
  tail call fastcc void @start_helpers(ptr noundef nonnull %0) #5
  br label %221

78:
  %79 = phi ptr [ %99, %98 ], [ %41, %40 ]
  %80 = load ptr, ptr %21, align 8
  %81 = load ptr, ptr %79, align 8
  %82 = getelementptr inbounds i8, ptr %79, i64 8
  %83 = load i64, ptr %82, align 8
  %84 = getelementptr i8, ptr %5, i64 %83
  %85 = getelementptr inbounds i8, ptr %79, i64 16
  %86 = load i64, ptr %85, align 8
  %87 = getelementptr inbounds i8, ptr %79, i64 24
  %88 = load i64, ptr %87, align 8
  tail call void %81(ptr noundef %84, i64 noundef %86, i64 noundef %88, ptr noundef %80) #6
  %89 = load atomic i64, ptr %22 monotonic, align 8
  %90 = icmp eq i64 %89, 0
  br i1 %90, label %91, label %222

91:
  %92 = load ptr, ptr %25, align 8
  %93 = getelementptr i8, ptr %92, i64 32
  store ptr %93, ptr %25, align 8
  %94 = load ptr, ptr %26, align 8
  %95 = icmp eq ptr %93, %94
  br i1 %95, label %102, label %96

96:
  %97 = tail call fastcc zeroext i1 @due(ptr noundef %0, ptr noundef nonnull %1) #5
  br i1 %97, label %222, label %98

98:
  %99 = load ptr, ptr %25, align 8
  %100 = load ptr, ptr %26, align 8
  %101 = icmp eq ptr %99, %100
  br i1 %101, label %102, label %78

102:
  store i64 0, ptr %1, align 8
  %103 = load i64, ptr %35, align 8
  %104 = icmp slt i64 %103, %4
  br i1 %104, label %105, label %221

105:
  %106 = tail call fastcc zeroext i1 @due(ptr noundef readonly %0, ptr noundef nonnull %1) #5
  br i1 %106, label %222, label %221

107:
  %108 = load ptr, ptr %25, align 8
  %109 = load ptr, ptr %26, align 8
  %110 = icmp eq ptr %108, %109
  br i1 %110, label %145, label %111

111:
  %112 = ptrtoint ptr %109 to i64
  %113 = ptrtoint ptr %108 to i64
  %114 = sub i64 %112, %113
  %115 = ashr exact i64 %114, 5
  %116 = load i64, ptr %27, align 32
  %117 = tail call i64 @llvm.smin.i64(i64 %115, i64 %116)
  %118 = load i64, ptr %28, align 8
  %119 = trunc i64 %118 to i32
  store atomic i32 0, ptr %18 monotonic, align 128
  %120 = load ptr, ptr %25, align 8
  %121 = ptrtoint ptr %120 to i64
  store atomic i64 %121, ptr %20 monotonic, align 128
  store atomic i64 %30, ptr %29 monotonic, align 8
  %122 = load ptr, ptr %23, align 8
  %123 = icmp eq ptr %122, null
  br i1 %123, label %126, label %124

124:
  %125 = tail call i32 %122() #6
  br label %126

126:
  %127 = phi i32 [ %125, %124 ], [ -1, %111 ]
  store atomic i32 %127, ptr %24 monotonic, align 16
  store atomic i32 %119, ptr %31 monotonic, align 4
  %128 = load ptr, ptr %25, align 8
  %129 = getelementptr %struct.chunk, ptr %128, i64 %117
  store ptr %129, ptr %25, align 8
  store i64 %117, ptr %16, align 8
  store i64 0, ptr %17, align 8
  store i64 3, ptr %1, align 8
  %130 = load atomic i64, ptr %0 monotonic, align 128
  %131 = and i64 %130, -4294967296
  %132 = add i64 %131, 4294967296
  %133 = or i64 %132, %117
  store atomic i64 %133, ptr %0 seq_cst, align 128
  %134 = load atomic i32, ptr %32 seq_cst, align 4
  %135 = icmp sgt i32 %134, 0
  br i1 %135, label %136, label %221

136:
  %137 = atomicrmw add ptr %33, i32 1 seq_cst, align 128
  %138 = load atomic i32, ptr %34 monotonic, align 128
  %139 = icmp ne i32 %138, %119
  %140 = icmp sgt i64 %117, 64
  %141 = or i1 %140, %139
  %142 = trunc i64 %117 to i32
  %143 = add i32 %142, -1
  %144 = select i1 %141, i32 64, i32 %143
  tail call fastcc void @wake_on(ptr noundef nonnull %0, ptr noundef nonnull %33, i32 noundef %144) #5
  br label %221

145:
  store i64 0, ptr %1, align 8
  %146 = load i64, ptr %35, align 8
  %147 = icmp slt i64 %146, %4
  br i1 %147, label %148, label %221

148:
  %149 = tail call fastcc zeroext i1 @due(ptr noundef readonly %0, ptr noundef nonnull %1) #5
  br i1 %149, label %222, label %221

150:
  %151 = load atomic i64, ptr %0 acquire, align 128
  %152 = and i64 %151, 65535
  %153 = icmp eq i64 %152, 0
  br i1 %153, label %198, label %154

154:
  %155 = phi i64 [ %161, %160 ], [ %151, %150 ]
  %156 = add i64 %155, 65535
  %157 = cmpxchg ptr %0, i64 %155, i64 %156 acq_rel acquire, align 128
  %158 = extractvalue { i64, i1 } %157, 1
  %159 = extractvalue { i64, i1 } %157, 0
  br i1 %158, label %164, label %160

160:
  %161 = phi i64 [ %197, %196 ], [ %159, %154 ]
  %162 = and i64 %161, 65535
  %163 = icmp eq i64 %162, 0
  br i1 %163, label %198, label %154

164:
  %165 = load atomic i64, ptr %20 monotonic, align 128
  %166 = inttoptr i64 %165 to ptr
  %167 = load i64, ptr %17, align 8
  %168 = add i64 %167, 1
  store i64 %168, ptr %17, align 8
  %169 = getelementptr %struct.chunk, ptr %166, i64 %167
  %170 = load ptr, ptr %21, align 8
  %171 = load ptr, ptr %169, align 8
  %172 = getelementptr inbounds i8, ptr %169, i64 8
  %173 = load i64, ptr %172, align 8
  %174 = getelementptr i8, ptr %5, i64 %173
  %175 = getelementptr inbounds i8, ptr %169, i64 16
  %176 = load i64, ptr %175, align 8
  %177 = getelementptr inbounds i8, ptr %169, i64 24
  %178 = load i64, ptr %177, align 8
  tail call void %171(ptr noundef %174, i64 noundef %176, i64 noundef %178, ptr noundef %170) #6
  %179 = load atomic i64, ptr %22 monotonic, align 8
  %180 = icmp eq i64 %179, 0
  br i1 %180, label %181, label %222

181:
  %182 = and i64 %155, 65535
  %183 = icmp eq i64 %182, 1
  br i1 %183, label %198, label %184

184:
  %185 = load ptr, ptr %23, align 8
  %186 = icmp eq ptr %185, null
  br i1 %186, label %189, label %187

187:
  %188 = tail call i32 %185() #6
  br label %189

189:
  %190 = phi i32 [ %188, %187 ], [ -1, %184 ]
  %191 = load atomic i32, ptr %24 monotonic, align 16
  %192 = icmp eq i32 %190, %191
  br i1 %192, label %194, label %193

193:
  store atomic i32 %190, ptr %24 monotonic, align 16
  br label %194

194:
  %195 = tail call fastcc zeroext i1 @due(ptr noundef nonnull %0, ptr noundef nonnull %1) #5
  br i1 %195, label %222, label %196

196:
  %197 = load atomic i64, ptr %0 acquire, align 128
  br label %160

198:
  store i64 4, ptr %1, align 8
  br label %221

199:
  %200 = load i64, ptr %16, align 8
  %201 = load i64, ptr %17, align 8
  %202 = sub i64 %200, %201
  %203 = trunc i64 %202 to i32
  br label %204

204:
  %205 = phi i32 [ 0, %199 ], [ %209, %208 ]
  %206 = load atomic i32, ptr %18 acquire, align 128
  %207 = icmp eq i32 %206, %203
  br i1 %207, label %220, label %208

208:
  tail call void @smelt_relax() #6
  %209 = add nuw nsw i32 %205, 1
  %210 = icmp eq i32 %209, 1001
  br i1 %210, label %211, label %204

211:
  %212 = tail call fastcc zeroext i1 @due(ptr noundef nonnull %0, ptr noundef nonnull %1) #5
  br i1 %212, label %222, label %213

213:
  store atomic i32 1, ptr %19 seq_cst, align 4
  %214 = load atomic i32, ptr %18 seq_cst, align 128
  %215 = icmp eq i32 %214, %203
  br i1 %215, label %217, label %216

216:
  tail call fastcc void @sleep_on(ptr noundef nonnull %0, ptr noundef nonnull %18, i32 noundef %214, i64 noundef 2000000) #5
  br label %217

217:
  store atomic i32 0, ptr %19 seq_cst, align 4
  %218 = load atomic i32, ptr %18 acquire, align 128
  %219 = icmp eq i32 %218, %203
  br i1 %219, label %220, label %211

220:
  store i64 2, ptr %1, align 8
  br label %221

221:
  br label %38

222:
  %223 = phi i32 [ 0, %50 ], [ 0, %47 ], [ 4, %78 ], [ 1, %96 ], [ 1, %194 ], [ 4, %164 ], [ 1, %211 ], [ 1, %148 ], [ 1, %105 ]
  %224 = load ptr, ptr %7, align 8
  %225 = load i64, ptr %9, align 16
  %226 = tail call ptr %224(i64 noundef %225) #6
  %227 = load ptr, ptr %12, align 32
  %228 = load i64, ptr %9, align 16
  %229 = tail call i32 %227(i64 noundef %228, ptr noundef %11) #6
  ret i32 %223
}

define noundef i32 @smelt_run(ptr noundef %0, ptr noundef %1, ptr nocapture noundef readonly %2, i64 noundef %3, ptr noundef %4, i64 noundef %5, i64 noundef %6, i64 noundef %7) local_unnamed_addr #0 {
  %9 = getelementptr inbounds i8, ptr %0, i64 512
  %10 = cmpxchg ptr %9, i64 0, i64 %7 acq_rel monotonic, align 128
  %11 = extractvalue { i64, i1 } %10, 1
  br i1 %11, label %12, label %28

12:
  %13 = getelementptr inbounds i8, ptr %0, i64 1280
  store i64 0, ptr %13, align 8
  %14 = getelementptr inbounds i8, ptr %0, i64 1288
  store i64 0, ptr %14, align 8
  %15 = getelementptr inbounds i8, ptr %0, i64 1328
  store i64 0, ptr %15, align 8
  %16 = getelementptr inbounds i8, ptr %0, i64 1360
  store atomic i64 0, ptr %16 monotonic, align 8
  %17 = getelementptr inbounds i8, ptr %0, i64 1352
  store i64 %6, ptr %17, align 8
  %18 = getelementptr inbounds i8, ptr %0, i64 640
  %19 = load atomic i32, ptr %18 monotonic, align 128
  %20 = sext i32 %19 to i64
  %21 = icmp slt i64 %20, %6
  br i1 %21, label %28, label %22

22:
  %23 = getelementptr inbounds i8, ptr %0, i64 648
  %24 = load i64, ptr %23, align 8
  %25 = icmp slt i64 %24, %5
  br i1 %25, label %28, label %26

26:
  %27 = tail call i32 @smelt_drive(ptr noundef nonnull %0, ptr noundef nonnull %13, ptr noundef %1, ptr noundef %2, i64 noundef %3, ptr noundef %4) #5
  br label %28

28:
  %29 = phi i32 [ 2, %8 ], [ %27, %26 ], [ 3, %22 ], [ 3, %12 ]
  ret i32 %29
}

define void @smelt_abandon(ptr noundef %0, i64 noundef %1) local_unnamed_addr #0 {
  %3 = getelementptr inbounds i8, ptr %0, i64 1280
  %4 = getelementptr inbounds i8, ptr %0, i64 512
  %5 = load atomic i64, ptr %4 acquire, align 128
  %6 = icmp eq i64 %5, %1
  br i1 %6, label %7, label %50

7:
  %8 = getelementptr inbounds i8, ptr %0, i64 1360
  store atomic i64 1, ptr %8 monotonic, align 8
  %9 = load i64, ptr %3, align 8
  %10 = add i64 %9, -3
  %11 = icmp ult i64 %10, 2
  br i1 %11, label %12, label %49

12:
  %13 = load atomic i64, ptr %0 acquire, align 128
  br label %14

14:
  %15 = phi i64 [ %13, %12 ], [ %19, %14 ]
  %16 = and i64 %15, -4294967296
  %17 = cmpxchg ptr %0, i64 %15, i64 %16 acq_rel acquire, align 128
  %18 = extractvalue { i64, i1 } %17, 1
  %19 = extractvalue { i64, i1 } %17, 0
  br i1 %18, label %20, label %14

20:
  %21 = getelementptr inbounds i8, ptr %0, i64 1312
  %22 = load i64, ptr %21, align 8
  %23 = and i64 %15, 65535
  %24 = getelementptr inbounds i8, ptr %0, i64 1320
  %25 = load i64, ptr %24, align 8
  %26 = add i64 %23, %25
  %27 = sub i64 %22, %26
  %28 = trunc i64 %27 to i32
  %29 = getelementptr inbounds i8, ptr %0, i64 128
  %30 = getelementptr inbounds i8, ptr %0, i64 132
  br label %31

31:
  %32 = phi i32 [ 0, %20 ], [ %39, %38 ]
  %33 = load atomic i32, ptr %29 acquire, align 128
  %34 = icmp eq i32 %33, %28
  br i1 %34, label %49, label %35

35:
  tail call void @smelt_relax() #6
  %36 = add nuw nsw i32 %32, 1
  %37 = icmp eq i32 %36, 1001
  br i1 %37, label %40, label %38

38:
  %39 = phi i32 [ %36, %35 ], [ 0, %40 ]
  br label %31

40:
  %41 = tail call fastcc zeroext i1 @due(ptr noundef nonnull %0, ptr noundef nonnull %3) #5
  br i1 %41, label %38, label %42

42:
  store atomic i32 1, ptr %30 seq_cst, align 4
  %43 = load atomic i32, ptr %29 seq_cst, align 128
  %44 = icmp eq i32 %43, %28
  br i1 %44, label %46, label %45

45:
  tail call fastcc void @sleep_on(ptr noundef nonnull %0, ptr noundef nonnull %29, i32 noundef %43, i64 noundef 2000000) #5
  br label %46

46:
  store atomic i32 0, ptr %30 seq_cst, align 4
  %47 = load atomic i32, ptr %29 acquire, align 128
  %48 = icmp eq i32 %47, %28
  br i1 %48, label %49, label %40

49:
  store i64 0, ptr %3, align 8
  store atomic i64 0, ptr %4 release, align 128
  br label %50

50:
  ret void
}

define internal fastcc void @exclude(ptr nocapture noundef readonly %0, ptr nocapture noundef readonly %1, i32 noundef %2) unnamed_addr #1 {
  %4 = alloca [16 x i64], align 16
  call void @llvm.lifetime.start.p0(i64 128, ptr nonnull %4) #7
  %5 = icmp ugt i32 %2, 1023
  br i1 %5, label %31, label %6

6:
  %7 = lshr i32 %2, 6
  %8 = and i32 %2, 63
  %9 = zext nneg i32 %8 to i64
  %10 = zext nneg i32 %7 to i64
  br label %13

11:
  %12 = icmp eq i64 %24, 0
  br i1 %12, label %31, label %27

13:
  %14 = phi i64 [ 0, %6 ], [ %25, %13 ]
  %15 = phi i64 [ 0, %6 ], [ %24, %13 ]
  %16 = getelementptr i64, ptr %1, i64 %14
  %17 = load i64, ptr %16, align 8
  %18 = icmp eq i64 %14, %10
  %19 = zext i1 %18 to i64
  %20 = shl nuw i64 %19, %9
  %21 = xor i64 %20, -1
  %22 = and i64 %17, %21
  %23 = getelementptr [16 x i64], ptr %4, i64 0, i64 %14
  store i64 %22, ptr %23, align 8
  %24 = or i64 %22, %15
  %25 = add nuw nsw i64 %14, 1
  %26 = icmp eq i64 %25, 16
  br i1 %26, label %11, label %13

27:
  %28 = getelementptr inbounds i8, ptr %0, i64 840
  %29 = load ptr, ptr %28, align 8
  %30 = call i32 %29(i32 noundef 0, i64 noundef 128, ptr noundef nonnull %4) #6
  br label %31

31:
  call void @llvm.lifetime.end.p0(i64 128, ptr nonnull %4) #7
  ret void
}

define internal fastcc void @widen(ptr nocapture noundef readonly %0, ptr noundef %1) unnamed_addr #1 {
  %3 = getelementptr inbounds i8, ptr %0, i64 840
  %4 = load ptr, ptr %3, align 8
  %5 = icmp eq ptr %4, null
  br i1 %5, label %8, label %6

6:
  %7 = tail call i32 %4(i32 noundef 0, i64 noundef 128, ptr noundef %1) #6
  br label %8

8:
  ret void
}

define internal fastcc void @sleep_on(ptr noundef %0, ptr noundef %1, i32 noundef %2, i64 noundef %3) unnamed_addr #1 {
  %5 = alloca [2 x i64], align 16
  %6 = getelementptr inbounds i8, ptr %0, i64 688
  %7 = load i64, ptr %6, align 16
  %8 = icmp eq i64 %7, 0
  br i1 %8, label %17, label %9

9:
  call void @llvm.lifetime.start.p0(i64 16, ptr nonnull %5) #7
  store i64 0, ptr %5, align 16
  %10 = getelementptr inbounds i8, ptr %5, i64 8
  store i64 %3, ptr %10, align 8
  %11 = getelementptr inbounds i8, ptr %0, i64 728
  %12 = load ptr, ptr %11, align 8
  %13 = sext i32 %2 to i64
  %14 = icmp eq i64 %3, 0
  %15 = select i1 %14, ptr null, ptr %5
  %16 = call i64 (i64, ...) %12(i64 noundef %7, ptr noundef %1, i64 noundef 128, i64 noundef %13, ptr noundef %15, ptr noundef null, i64 noundef 0) #6
  call void @llvm.lifetime.end.p0(i64 16, ptr nonnull %5) #7
  br label %42

17:
  %18 = icmp eq i64 %3, 0
  br i1 %18, label %23, label %19

19:
  %20 = getelementptr inbounds i8, ptr %0, i64 736
  %21 = load ptr, ptr %20, align 32
  %22 = tail call i32 %21() #6
  br label %42

23:
  %24 = getelementptr inbounds i8, ptr %0, i64 792
  %25 = load ptr, ptr %24, align 8
  %26 = getelementptr inbounds i8, ptr %0, i64 1024
  %27 = tail call i32 %25(ptr noundef nonnull %26) #6
  %28 = load atomic i32, ptr %1 seq_cst, align 4
  %29 = icmp eq i32 %28, %2
  br i1 %29, label %30, label %38

30:
  %31 = getelementptr inbounds i8, ptr %0, i64 808
  %32 = getelementptr inbounds i8, ptr %0, i64 1152
  br label %33

33:
  %34 = load ptr, ptr %31, align 8
  %35 = tail call i32 %34(ptr noundef nonnull %32, ptr noundef nonnull %26) #6
  %36 = load atomic i32, ptr %1 seq_cst, align 4
  %37 = icmp eq i32 %36, %2
  br i1 %37, label %33, label %38

38:
  %39 = getelementptr inbounds i8, ptr %0, i64 800
  %40 = load ptr, ptr %39, align 32
  %41 = tail call i32 %40(ptr noundef nonnull %26) #6
  br label %42

42:
  ret void
}

define internal fastcc void @start_helpers(ptr noundef %0) unnamed_addr #1 {
  %2 = getelementptr inbounds i8, ptr %0, i64 640
  %3 = load atomic i32, ptr %2 monotonic, align 128
  %4 = icmp sgt i32 %3, 1
  br i1 %4, label %5, label %23

5:
  %6 = getelementptr inbounds i8, ptr %0, i64 1408
  %7 = zext nneg i32 %3 to i64
  br label %8

8:
  %9 = phi i64 [ 1, %5 ], [ %21, %20 ]
  %10 = getelementptr [64 x %struct.slot], ptr %6, i64 0, i64 %9
  %11 = cmpxchg ptr %10, i32 0, i32 1 seq_cst seq_cst, align 128
  %12 = extractvalue { i32, i1 } %11, 1
  br i1 %12, label %13, label %20

13:
  %14 = getelementptr inbounds i8, ptr %10, i64 4
  %15 = trunc nuw nsw i64 %9 to i32
  store i32 %15, ptr %14, align 4
  %16 = getelementptr inbounds i8, ptr %10, i64 8
  store ptr %0, ptr %16, align 8
  %17 = tail call fastcc i32 @spawn(ptr noundef %0, ptr noundef %10) #5
  %18 = icmp eq i32 %17, 0
  br i1 %18, label %20, label %19

19:
  store atomic i32 0, ptr %10 seq_cst, align 128
  br label %23

20:
  %21 = add nuw nsw i64 %9, 1
  %22 = icmp eq i64 %21, %7
  br i1 %22, label %23, label %8

23:
  %24 = getelementptr inbounds i8, ptr %0, i64 644
  store atomic i32 %3, ptr %24 monotonic, align 4
  ret void
}

define internal fastcc i32 @spawn(ptr nocapture noundef readonly %0, ptr noundef %1) unnamed_addr #1 {
  %3 = alloca [128 x i8], align 16
  %4 = alloca [128 x i8], align 16
  %5 = alloca [128 x i8], align 16
  %6 = alloca i64, align 8
  call void @llvm.lifetime.start.p0(i64 128, ptr nonnull %3) #7
  call void @llvm.lifetime.start.p0(i64 128, ptr nonnull %4) #7
  call void @llvm.lifetime.start.p0(i64 128, ptr nonnull %5) #7
  call void @llvm.lifetime.start.p0(i64 8, ptr nonnull %6) #7
  %7 = getelementptr inbounds i8, ptr %0, i64 744
  %8 = load ptr, ptr %7, align 8
  %9 = call i32 %8(ptr noundef nonnull %3) #6
  %10 = getelementptr inbounds i8, ptr %0, i64 752
  %11 = load ptr, ptr %10, align 16
  %12 = call i32 %11(ptr noundef nonnull %3, i64 noundef 1048576) #6
  %13 = getelementptr inbounds i8, ptr %0, i64 760
  %14 = load ptr, ptr %13, align 8
  %15 = getelementptr inbounds i8, ptr %0, i64 712
  %16 = load i64, ptr %15, align 8
  %17 = trunc i64 %16 to i32
  %18 = call i32 %14(ptr noundef nonnull %3, i32 noundef %17) #6
  %19 = getelementptr inbounds i8, ptr %0, i64 776
  %20 = load ptr, ptr %19, align 8
  %21 = call i32 %20(ptr noundef nonnull %4) #6
  %22 = getelementptr inbounds i8, ptr %0, i64 784
  %23 = load ptr, ptr %22, align 16
  %24 = getelementptr inbounds i8, ptr %0, i64 704
  %25 = load i64, ptr %24, align 64
  %26 = trunc i64 %25 to i32
  %27 = call i32 %23(i32 noundef %26, ptr noundef nonnull %4, ptr noundef nonnull %5) #6
  %28 = getelementptr inbounds i8, ptr %0, i64 768
  %29 = load ptr, ptr %28, align 128
  %30 = getelementptr inbounds i8, ptr %0, i64 680
  %31 = load ptr, ptr %30, align 8
  %32 = call i32 %29(ptr noundef nonnull %6, ptr noundef nonnull %3, ptr noundef %31, ptr noundef %1) #6
  %33 = load ptr, ptr %22, align 16
  %34 = load i64, ptr %24, align 64
  %35 = trunc i64 %34 to i32
  %36 = call i32 %33(i32 noundef %35, ptr noundef nonnull %5, ptr noundef null) #6
  call void @llvm.lifetime.end.p0(i64 8, ptr nonnull %6) #7
  call void @llvm.lifetime.end.p0(i64 128, ptr nonnull %5) #7
  call void @llvm.lifetime.end.p0(i64 128, ptr nonnull %4) #7
  call void @llvm.lifetime.end.p0(i64 128, ptr nonnull %3) #7
  ret i32 %32
}

declare i64 @llvm.smin.i64(i64, i64) #4

attributes #0 = { nounwind "no-builtins" "no-jump-tables"="true" }
attributes #1 = { noinline nounwind "no-builtins" "no-jump-tables"="true" }
attributes #2 = { mustprogress nocallback nofree nosync nounwind willreturn memory(argmem: readwrite) }
attributes #3 = { "no-builtins" }
attributes #4 = { nocallback nofree nosync nounwind speculatable willreturn memory(none) }
attributes #5 = { nobuiltin "no-builtins" }
attributes #6 = { nobuiltin nounwind "no-builtins" }
attributes #7 = { nounwind }
