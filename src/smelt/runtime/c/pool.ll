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
  %15 = getelementptr inbounds i8, ptr %0, i64 896
  %16 = tail call i32 %14(ptr noundef nonnull %15) #6
  %17 = getelementptr inbounds i8, ptr %0, i64 816
  %18 = load ptr, ptr %17, align 16
  %19 = getelementptr inbounds i8, ptr %0, i64 1024
  %20 = tail call i32 %18(ptr noundef nonnull %19) #6
  %21 = getelementptr inbounds i8, ptr %0, i64 800
  %22 = load ptr, ptr %21, align 32
  %23 = tail call i32 %22(ptr noundef nonnull %15) #6
  br label %24

24:
  ret void
}

define noundef ptr @smelt_helper(ptr nocapture noundef %0) local_unnamed_addr #0 {
  %2 = alloca [2 x i64], align 16
  %3 = alloca [2 x i64], align 16
  %4 = alloca [16 x i64], align 16
  %5 = getelementptr inbounds i8, ptr %0, i64 8
  %6 = load ptr, ptr %5, align 8
  call void @llvm.lifetime.start.p0(i64 128, ptr nonnull %4) #7
  br label %11

7:
  %8 = getelementptr inbounds i8, ptr %6, i64 832
  %9 = load ptr, ptr %8, align 64
  %10 = icmp eq ptr %9, null
  br i1 %10, label %18, label %16

11:
  %12 = phi i64 [ 0, %1 ], [ %14, %11 ]
  %13 = getelementptr [16 x i64], ptr %4, i64 0, i64 %12
  store i64 0, ptr %13, align 8
  %14 = add nuw nsw i64 %12, 1
  %15 = icmp eq i64 %14, 16
  br i1 %15, label %7, label %11

16:
  %17 = call i32 %9(i32 noundef 0, i64 noundef 128, ptr noundef nonnull %4) #6
  br label %18

18:
  %19 = getelementptr inbounds i8, ptr %6, i64 720
  %20 = getelementptr inbounds i8, ptr %6, i64 696
  %21 = getelementptr inbounds i8, ptr %3, i64 8
  %22 = getelementptr inbounds i8, ptr %0, i64 4
  %23 = getelementptr inbounds i8, ptr %6, i64 640
  %24 = getelementptr inbounds i8, ptr %6, i64 276
  %25 = getelementptr inbounds i8, ptr %6, i64 824
  %26 = getelementptr inbounds i8, ptr %6, i64 272
  %27 = getelementptr inbounds i8, ptr %6, i64 256
  %28 = getelementptr inbounds i8, ptr %6, i64 264
  %29 = getelementptr inbounds i8, ptr %2, i64 8
  %30 = getelementptr inbounds i8, ptr %6, i64 656
  %31 = getelementptr inbounds i8, ptr %0, i64 16
  %32 = getelementptr inbounds i8, ptr %0, i64 24
  %33 = getelementptr inbounds i8, ptr %6, i64 128
  %34 = getelementptr inbounds i8, ptr %6, i64 132
  %35 = getelementptr inbounds i8, ptr %6, i64 384
  %36 = getelementptr inbounds i8, ptr %6, i64 388
  br label %37

37:
  call void @llvm.lifetime.start.p0(i64 16, ptr nonnull %3) #7
  %38 = load ptr, ptr %19, align 16
  %39 = load i64, ptr %20, align 8
  %40 = trunc i64 %39 to i32
  %41 = call i32 %38(i32 noundef %40, ptr noundef nonnull %3) #6
  %42 = load i64, ptr %3, align 16
  %43 = load i64, ptr %21, align 8
  call void @llvm.lifetime.end.p0(i64 16, ptr nonnull %3) #7
  %44 = load i32, ptr %22, align 4
  %45 = load atomic i32, ptr %23 acquire, align 128
  %46 = icmp slt i32 %44, %45
  br i1 %46, label %55, label %47

47:
  store atomic i32 0, ptr %0 seq_cst, align 128
  %48 = load i32, ptr %22, align 4
  %49 = load atomic i32, ptr %23 seq_cst, align 128
  %50 = icmp slt i32 %48, %49
  br i1 %50, label %51, label %153

51:
  %52 = cmpxchg ptr %0, i32 0, i32 1 seq_cst seq_cst, align 128
  %53 = freeze { i32, i1 } %52
  %54 = extractvalue { i32, i1 } %53, 1
  br i1 %54, label %152, label %153

55:
  %56 = phi i32 [ %117, %116 ], [ 0, %37 ]
  br label %57

57:
  %58 = load atomic i64, ptr %6 acquire, align 128
  %59 = and i64 %58, 65535
  %60 = icmp eq i64 %59, 0
  br i1 %60, label %113, label %61

61:
  %62 = load i32, ptr %22, align 4
  %63 = load atomic i32, ptr %24 monotonic, align 4
  %64 = icmp slt i32 %62, %63
  br i1 %64, label %65, label %113

65:
  %66 = load ptr, ptr %25, align 8
  %67 = icmp eq ptr %66, null
  br i1 %67, label %82, label %68

68:
  %69 = call i32 %66() #6
  %70 = icmp sgt i32 %69, -1
  br i1 %70, label %71, label %82

71:
  %72 = load atomic i32, ptr %26 monotonic, align 16
  %73 = icmp eq i32 %69, %72
  br i1 %73, label %74, label %82

74:
  call fastcc void @exclude(ptr noundef nonnull %6, ptr noundef nonnull %4, i32 noundef %69) #5
  call fastcc void @widen(ptr noundef nonnull %6, ptr noundef nonnull %4) #5
  %75 = load atomic i64, ptr %6 acquire, align 128
  %76 = and i64 %75, 65535
  %77 = icmp eq i64 %76, 0
  br i1 %77, label %152, label %78

78:
  %79 = load i32, ptr %22, align 4
  %80 = load atomic i32, ptr %24 monotonic, align 4
  %81 = icmp slt i32 %79, %80
  br i1 %81, label %82, label %152

82:
  %83 = phi i64 [ %75, %78 ], [ %58, %71 ], [ %58, %68 ], [ %58, %65 ]
  %84 = load atomic i64, ptr %27 monotonic, align 128
  %85 = load atomic i64, ptr %28 monotonic, align 8
  %86 = add i64 %83, -1
  %87 = cmpxchg ptr %6, i64 %83, i64 %86 acq_rel monotonic, align 128
  %88 = extractvalue { i64, i1 } %87, 1
  br i1 %88, label %89, label %57

89:
  %90 = inttoptr i64 %85 to ptr
  %91 = inttoptr i64 %84 to ptr
  %92 = lshr i64 %83, 16
  %93 = and i64 %92, 65535
  %94 = getelementptr %struct.chunk, ptr %91, i64 %93
  %95 = and i64 %83, 65535
  %96 = getelementptr %struct.chunk, ptr %94, i64 %95
  %97 = getelementptr i8, ptr %96, i64 -32
  %98 = load ptr, ptr %31, align 16
  %99 = load ptr, ptr %97, align 8
  %100 = getelementptr i8, ptr %96, i64 -24
  %101 = load i64, ptr %100, align 8
  %102 = getelementptr i8, ptr %90, i64 %101
  %103 = getelementptr i8, ptr %96, i64 -16
  %104 = load i64, ptr %103, align 8
  %105 = getelementptr i8, ptr %96, i64 -8
  %106 = load i64, ptr %105, align 8
  call void %99(ptr noundef %102, i64 noundef %104, i64 noundef %106, ptr noundef %98) #6
  %107 = load atomic i64, ptr %32 monotonic, align 8
  %108 = add i64 %107, 1
  store atomic i64 %108, ptr %32 monotonic, align 8
  %109 = atomicrmw add ptr %33, i32 1 seq_cst, align 128
  %110 = load atomic i32, ptr %34 seq_cst, align 4
  %111 = icmp eq i32 %110, 0
  br i1 %111, label %152, label %112

112:
  call fastcc void @wake_on(ptr noundef nonnull %6, ptr noundef nonnull %33, i32 noundef 1) #5
  br label %152

113:
  call void @smelt_relax() #6
  %114 = add i32 %56, 1
  %115 = icmp slt i32 %114, 65
  br i1 %115, label %116, label %121

116:
  %117 = phi i32 [ %114, %113 ], [ 0, %121 ]
  %118 = load i32, ptr %22, align 4
  %119 = load atomic i32, ptr %23 acquire, align 128
  %120 = icmp slt i32 %118, %119
  br i1 %120, label %55, label %47

121:
  call void @llvm.lifetime.start.p0(i64 16, ptr nonnull %2) #7
  %122 = load ptr, ptr %19, align 16
  %123 = load i64, ptr %20, align 8
  %124 = trunc i64 %123 to i32
  %125 = call i32 %122(i32 noundef %124, ptr noundef nonnull %2) #6
  %126 = load i64, ptr %2, align 16
  %127 = load i64, ptr %29, align 8
  call void @llvm.lifetime.end.p0(i64 16, ptr nonnull %2) #7
  %128 = sub i64 %126, %42
  %129 = mul i64 %128, 1000000000
  %130 = sub i64 %127, %43
  %131 = add i64 %130, %129
  %132 = load i64, ptr %30, align 16
  %133 = icmp sgt i64 %131, %132
  br i1 %133, label %134, label %116

134:
  %135 = load atomic i32, ptr %35 seq_cst, align 128
  %136 = atomicrmw add ptr %36, i32 1 seq_cst, align 4
  %137 = load atomic i64, ptr %6 seq_cst, align 128
  %138 = load i32, ptr %22, align 4
  %139 = load atomic i32, ptr %23 seq_cst, align 128
  %140 = icmp slt i32 %138, %139
  br i1 %140, label %141, label %150

141:
  %142 = and i64 %137, 65535
  %143 = icmp eq i64 %142, 0
  br i1 %143, label %148, label %144

144:
  %145 = load i32, ptr %22, align 4
  %146 = load atomic i32, ptr %24 monotonic, align 4
  %147 = icmp slt i32 %145, %146
  br i1 %147, label %150, label %148

148:
  %149 = load atomic i32, ptr %26 monotonic, align 16
  call fastcc void @exclude(ptr noundef nonnull %6, ptr noundef nonnull %4, i32 noundef %149) #5
  call fastcc void @sleep_on(ptr noundef nonnull %6, ptr noundef nonnull %35, i32 noundef %135, i64 noundef 0) #5
  call fastcc void @widen(ptr noundef nonnull %6, ptr noundef nonnull %4) #5
  br label %150

150:
  %151 = atomicrmw add ptr %36, i32 -1 seq_cst, align 4
  br label %152

152:
  br label %37

153:
  call void @llvm.lifetime.end.p0(i64 128, ptr nonnull %4) #7
  ret ptr null
}

declare void @llvm.lifetime.start.p0(i64 immarg, ptr nocapture) #2

declare void @llvm.lifetime.end.p0(i64 immarg, ptr nocapture) #2

declare void @smelt_relax() local_unnamed_addr #3

define range(i32 0, 2) i32 @smelt_drive(ptr noundef %0, ptr nocapture noundef %1, ptr noundef %2, ptr nocapture noundef readonly %3, i64 noundef %4, ptr noundef %5) local_unnamed_addr #0 {
  %7 = getelementptr inbounds i8, ptr %1, i64 32
  %8 = getelementptr inbounds i8, ptr %1, i64 40
  %9 = getelementptr inbounds i8, ptr %0, i64 128
  %10 = getelementptr inbounds i8, ptr %0, i64 132
  %11 = getelementptr inbounds i8, ptr %0, i64 256
  %12 = getelementptr inbounds i8, ptr %1, i64 64
  %13 = getelementptr inbounds i8, ptr %0, i64 824
  %14 = getelementptr inbounds i8, ptr %0, i64 272
  %15 = getelementptr inbounds i8, ptr %1, i64 16
  %16 = getelementptr inbounds i8, ptr %1, i64 24
  %17 = getelementptr inbounds i8, ptr %0, i64 672
  %18 = getelementptr inbounds i8, ptr %1, i64 72
  %19 = getelementptr inbounds i8, ptr %0, i64 264
  %20 = ptrtoint ptr %5 to i64
  %21 = getelementptr inbounds i8, ptr %0, i64 276
  %22 = getelementptr inbounds i8, ptr %0, i64 388
  %23 = getelementptr inbounds i8, ptr %0, i64 384
  %24 = getelementptr inbounds i8, ptr %0, i64 640
  %25 = getelementptr inbounds i8, ptr %1, i64 8
  %26 = getelementptr inbounds i8, ptr %1, i64 56
  %27 = getelementptr inbounds i8, ptr %0, i64 644
  br label %28

28:
  %29 = load i64, ptr %1, align 8
  switch i64 %29, label %135 [
    i64 0, label %34
    i64 1, label %30
    i64 2, label %94
    i64 3, label %138
    i64 4, label %184
  ]

30:
  %31 = load ptr, ptr %15, align 8
  %32 = load ptr, ptr %16, align 8
  %33 = icmp eq ptr %31, %32
  br i1 %33, label %89, label %68

34:
  %35 = load i64, ptr %25, align 8
  %36 = icmp slt i64 %35, %4
  br i1 %36, label %42, label %37

37:
  %38 = load i64, ptr %26, align 8
  %39 = icmp eq i64 %38, 0
  br i1 %39, label %40, label %206

40:
  %41 = getelementptr inbounds i8, ptr %0, i64 512
  store atomic i64 0, ptr %41 release, align 128
  br label %206

42:
  %43 = add nsw i64 %35, 1
  store i64 %43, ptr %25, align 8
  %44 = getelementptr %struct.launch, ptr %3, i64 %35
  %45 = load i64, ptr %44, align 8
  %46 = getelementptr %struct.chunk, ptr %2, i64 %45
  store ptr %46, ptr %15, align 8
  %47 = getelementptr inbounds i8, ptr %44, i64 8
  %48 = load i64, ptr %47, align 8
  %49 = getelementptr %struct.chunk, ptr %46, i64 %48
  store ptr %49, ptr %16, align 8
  store i64 1, ptr %1, align 8
  %50 = getelementptr inbounds i8, ptr %44, i64 16
  %51 = load i64, ptr %50, align 8
  %52 = and i64 %51, 1
  %53 = icmp eq i64 %52, 0
  br i1 %53, label %135, label %54

54:
  %55 = load i64, ptr %47, align 8
  %56 = icmp sgt i64 %55, 1
  br i1 %56, label %57, label %135

57:
  %58 = load i64, ptr %18, align 8
  %59 = icmp sgt i64 %58, 1
  br i1 %59, label %60, label %135

60:
  %61 = load i64, ptr %26, align 8
  %62 = icmp eq i64 %61, 0
  br i1 %62, label %63, label %135

63:
  store i64 2, ptr %1, align 8
  %64 = load atomic i32, ptr %27 monotonic, align 4
  %65 = load atomic i32, ptr %24 monotonic, align 128
  %66 = icmp eq i32 %64, %65
  br i1 %66, label %135, label %67

67:
  tail call fastcc void @start_helpers(ptr noundef nonnull %0) #5
  br label %135

68:
  %69 = phi ptr [ %86, %85 ], [ %31, %30 ]
  %70 = load ptr, ptr %12, align 8
  %71 = load ptr, ptr %69, align 8
  %72 = getelementptr inbounds i8, ptr %69, i64 8
  %73 = load i64, ptr %72, align 8
  %74 = getelementptr i8, ptr %5, i64 %73
  %75 = getelementptr inbounds i8, ptr %69, i64 16
  %76 = load i64, ptr %75, align 8
  %77 = getelementptr inbounds i8, ptr %69, i64 24
  %78 = load i64, ptr %77, align 8
  tail call void %71(ptr noundef %74, i64 noundef %76, i64 noundef %78, ptr noundef %70) #6
  %79 = load ptr, ptr %15, align 8
  %80 = getelementptr i8, ptr %79, i64 32
  store ptr %80, ptr %15, align 8
  %81 = load ptr, ptr %16, align 8
  %82 = icmp eq ptr %80, %81
  br i1 %82, label %89, label %83

83:
  %84 = tail call fastcc zeroext i1 @due(ptr noundef %0, ptr noundef nonnull %1) #5
  br i1 %84, label %206, label %85

85:
  %86 = load ptr, ptr %15, align 8
  %87 = load ptr, ptr %16, align 8
  %88 = icmp eq ptr %86, %87
  br i1 %88, label %89, label %68

89:
  store i64 0, ptr %1, align 8
  %90 = load i64, ptr %25, align 8
  %91 = icmp slt i64 %90, %4
  br i1 %91, label %92, label %135

92:
  %93 = tail call fastcc zeroext i1 @due(ptr noundef readonly %0, ptr noundef nonnull %1) #5
  br i1 %93, label %206, label %135

94:
  %95 = load ptr, ptr %15, align 8
  %96 = load ptr, ptr %16, align 8
  %97 = icmp eq ptr %95, %96
  br i1 %97, label %132, label %98

98:
  %99 = ptrtoint ptr %96 to i64
  %100 = ptrtoint ptr %95 to i64
  %101 = sub i64 %99, %100
  %102 = ashr exact i64 %101, 5
  %103 = load i64, ptr %17, align 32
  %104 = tail call i64 @llvm.smin.i64(i64 %102, i64 %103)
  %105 = load i64, ptr %18, align 8
  %106 = trunc i64 %105 to i32
  store atomic i32 0, ptr %9 monotonic, align 128
  %107 = load ptr, ptr %15, align 8
  %108 = ptrtoint ptr %107 to i64
  store atomic i64 %108, ptr %11 monotonic, align 128
  store atomic i64 %20, ptr %19 monotonic, align 8
  %109 = load ptr, ptr %13, align 8
  %110 = icmp eq ptr %109, null
  br i1 %110, label %113, label %111

111:
  %112 = tail call i32 %109() #6
  br label %113

113:
  %114 = phi i32 [ %112, %111 ], [ -1, %98 ]
  store atomic i32 %114, ptr %14 monotonic, align 16
  store atomic i32 %106, ptr %21 monotonic, align 4
  %115 = load ptr, ptr %15, align 8
  %116 = getelementptr %struct.chunk, ptr %115, i64 %104
  store ptr %116, ptr %15, align 8
  store i64 %104, ptr %7, align 8
  store i64 0, ptr %8, align 8
  store i64 3, ptr %1, align 8
  %117 = load atomic i64, ptr %0 monotonic, align 128
  %118 = and i64 %117, -4294967296
  %119 = add i64 %118, 4294967296
  %120 = or i64 %119, %104
  store atomic i64 %120, ptr %0 seq_cst, align 128
  %121 = load atomic i32, ptr %22 seq_cst, align 4
  %122 = icmp sgt i32 %121, 0
  br i1 %122, label %123, label %135

123:
  %124 = atomicrmw add ptr %23, i32 1 seq_cst, align 128
  %125 = load atomic i32, ptr %24 monotonic, align 128
  %126 = icmp ne i32 %125, %106
  %127 = icmp sgt i64 %104, 64
  %128 = or i1 %127, %126
  %129 = trunc i64 %104 to i32
  %130 = add i32 %129, -1
  %131 = select i1 %128, i32 64, i32 %130
  tail call fastcc void @wake_on(ptr noundef nonnull %0, ptr noundef nonnull %23, i32 noundef %131) #5
  br label %135

132:
  store i64 0, ptr %1, align 8
  %133 = load i64, ptr %25, align 8
  %134 = icmp slt i64 %133, %4
  br i1 %134, label %136, label %135

135:
  br label %28

136:
  %137 = tail call fastcc zeroext i1 @due(ptr noundef readonly %0, ptr noundef nonnull %1) #5
  br i1 %137, label %206, label %135

138:
  %139 = load atomic i64, ptr %0 acquire, align 128
  %140 = and i64 %139, 65535
  %141 = icmp eq i64 %140, 0
  br i1 %141, label %183, label %142

142:
  %143 = phi i64 [ %149, %148 ], [ %139, %138 ]
  %144 = add i64 %143, 65535
  %145 = cmpxchg ptr %0, i64 %143, i64 %144 acq_rel acquire, align 128
  %146 = extractvalue { i64, i1 } %145, 1
  %147 = extractvalue { i64, i1 } %145, 0
  br i1 %146, label %152, label %148

148:
  %149 = phi i64 [ %182, %181 ], [ %147, %142 ]
  %150 = and i64 %149, 65535
  %151 = icmp eq i64 %150, 0
  br i1 %151, label %183, label %142

152:
  %153 = load atomic i64, ptr %11 monotonic, align 128
  %154 = inttoptr i64 %153 to ptr
  %155 = load i64, ptr %8, align 8
  %156 = add i64 %155, 1
  store i64 %156, ptr %8, align 8
  %157 = getelementptr %struct.chunk, ptr %154, i64 %155
  %158 = load ptr, ptr %12, align 8
  %159 = load ptr, ptr %157, align 8
  %160 = getelementptr inbounds i8, ptr %157, i64 8
  %161 = load i64, ptr %160, align 8
  %162 = getelementptr i8, ptr %5, i64 %161
  %163 = getelementptr inbounds i8, ptr %157, i64 16
  %164 = load i64, ptr %163, align 8
  %165 = getelementptr inbounds i8, ptr %157, i64 24
  %166 = load i64, ptr %165, align 8
  tail call void %159(ptr noundef %162, i64 noundef %164, i64 noundef %166, ptr noundef %158) #6
  %167 = and i64 %143, 65535
  %168 = icmp eq i64 %167, 1
  br i1 %168, label %183, label %169

169:
  %170 = load ptr, ptr %13, align 8
  %171 = icmp eq ptr %170, null
  br i1 %171, label %174, label %172

172:
  %173 = tail call i32 %170() #6
  br label %174

174:
  %175 = phi i32 [ %173, %172 ], [ -1, %169 ]
  %176 = load atomic i32, ptr %14 monotonic, align 16
  %177 = icmp eq i32 %175, %176
  br i1 %177, label %179, label %178

178:
  store atomic i32 %175, ptr %14 monotonic, align 16
  br label %179

179:
  %180 = tail call fastcc zeroext i1 @due(ptr noundef nonnull %0, ptr noundef nonnull %1) #5
  br i1 %180, label %206, label %181

181:
  %182 = load atomic i64, ptr %0 acquire, align 128
  br label %148

183:
  store i64 4, ptr %1, align 8
  br label %135

184:
  %185 = load i64, ptr %7, align 8
  %186 = load i64, ptr %8, align 8
  %187 = sub i64 %185, %186
  %188 = trunc i64 %187 to i32
  br label %189

189:
  %190 = phi i32 [ 0, %184 ], [ %194, %193 ]
  %191 = load atomic i32, ptr %9 acquire, align 128
  %192 = icmp eq i32 %191, %188
  br i1 %192, label %205, label %193

193:
  tail call void @smelt_relax() #6
  %194 = add nuw nsw i32 %190, 1
  %195 = icmp eq i32 %194, 1001
  br i1 %195, label %196, label %189

196:
  %197 = tail call fastcc zeroext i1 @due(ptr noundef nonnull %0, ptr noundef nonnull %1) #5
  br i1 %197, label %206, label %198

198:
  store atomic i32 1, ptr %10 seq_cst, align 4
  %199 = load atomic i32, ptr %9 seq_cst, align 128
  %200 = icmp eq i32 %199, %188
  br i1 %200, label %202, label %201

201:
  tail call fastcc void @sleep_on(ptr noundef nonnull %0, ptr noundef nonnull %9, i32 noundef %199, i64 noundef 2000000) #5
  br label %202

202:
  store atomic i32 0, ptr %10 seq_cst, align 4
  %203 = load atomic i32, ptr %9 acquire, align 128
  %204 = icmp eq i32 %203, %188
  br i1 %204, label %205, label %196

205:
  store i64 2, ptr %1, align 8
  br label %135

206:
  %207 = phi i32 [ 0, %40 ], [ 0, %37 ], [ 1, %83 ], [ 1, %179 ], [ 1, %196 ], [ 1, %92 ], [ 1, %136 ]
  ret i32 %207
}

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

define range(i32 0, 4) i32 @smelt_run(ptr noundef %0, ptr noundef %1, ptr nocapture noundef readonly %2, i64 noundef %3, ptr noundef %4, i64 noundef %5, i64 noundef %6, i64 noundef %7) local_unnamed_addr #0 {
  %9 = getelementptr inbounds i8, ptr %0, i64 512
  %10 = cmpxchg ptr %9, i64 0, i64 %7 acq_rel monotonic, align 128
  %11 = extractvalue { i64, i1 } %10, 1
  br i1 %11, label %12, label %27

12:
  %13 = getelementptr inbounds i8, ptr %0, i64 1152
  store i64 0, ptr %13, align 8
  %14 = getelementptr inbounds i8, ptr %0, i64 1160
  store i64 0, ptr %14, align 8
  %15 = getelementptr inbounds i8, ptr %0, i64 1200
  store i64 0, ptr %15, align 8
  %16 = getelementptr inbounds i8, ptr %0, i64 1224
  store i64 %6, ptr %16, align 8
  %17 = getelementptr inbounds i8, ptr %0, i64 640
  %18 = load atomic i32, ptr %17 monotonic, align 128
  %19 = sext i32 %18 to i64
  %20 = icmp slt i64 %19, %6
  br i1 %20, label %27, label %21

21:
  %22 = getelementptr inbounds i8, ptr %0, i64 648
  %23 = load i64, ptr %22, align 8
  %24 = icmp slt i64 %23, %5
  br i1 %24, label %27, label %25

25:
  %26 = tail call i32 @smelt_drive(ptr noundef nonnull %0, ptr noundef nonnull %13, ptr noundef %1, ptr noundef %2, i64 noundef %3, ptr noundef %4) #5
  br label %27

27:
  %28 = phi i32 [ 2, %8 ], [ %26, %25 ], [ 3, %21 ], [ 3, %12 ]
  ret i32 %28
}

define void @smelt_abandon(ptr noundef %0, i64 noundef %1) local_unnamed_addr #0 {
  %3 = getelementptr inbounds i8, ptr %0, i64 1152
  %4 = getelementptr inbounds i8, ptr %0, i64 512
  %5 = load atomic i64, ptr %4 acquire, align 128
  %6 = icmp eq i64 %5, %1
  br i1 %6, label %7, label %49

7:
  %8 = load i64, ptr %3, align 8
  %9 = add i64 %8, -3
  %10 = icmp ult i64 %9, 2
  br i1 %10, label %11, label %48

11:
  %12 = load atomic i64, ptr %0 acquire, align 128
  br label %13

13:
  %14 = phi i64 [ %12, %11 ], [ %18, %13 ]
  %15 = and i64 %14, -4294967296
  %16 = cmpxchg ptr %0, i64 %14, i64 %15 acq_rel acquire, align 128
  %17 = extractvalue { i64, i1 } %16, 1
  %18 = extractvalue { i64, i1 } %16, 0
  br i1 %17, label %19, label %13

19:
  %20 = getelementptr inbounds i8, ptr %0, i64 1184
  %21 = load i64, ptr %20, align 8
  %22 = and i64 %14, 65535
  %23 = getelementptr inbounds i8, ptr %0, i64 1192
  %24 = load i64, ptr %23, align 8
  %25 = add i64 %22, %24
  %26 = sub i64 %21, %25
  %27 = trunc i64 %26 to i32
  %28 = getelementptr inbounds i8, ptr %0, i64 128
  %29 = getelementptr inbounds i8, ptr %0, i64 132
  br label %30

30:
  %31 = phi i32 [ 0, %19 ], [ %38, %37 ]
  %32 = load atomic i32, ptr %28 acquire, align 128
  %33 = icmp eq i32 %32, %27
  br i1 %33, label %48, label %34

34:
  tail call void @smelt_relax() #6
  %35 = add nuw nsw i32 %31, 1
  %36 = icmp eq i32 %35, 1001
  br i1 %36, label %39, label %37

37:
  %38 = phi i32 [ %35, %34 ], [ 0, %39 ]
  br label %30

39:
  %40 = tail call fastcc zeroext i1 @due(ptr noundef nonnull %0, ptr noundef nonnull %3) #5
  br i1 %40, label %37, label %41

41:
  store atomic i32 1, ptr %29 seq_cst, align 4
  %42 = load atomic i32, ptr %28 seq_cst, align 128
  %43 = icmp eq i32 %42, %27
  br i1 %43, label %45, label %44

44:
  tail call fastcc void @sleep_on(ptr noundef nonnull %0, ptr noundef nonnull %28, i32 noundef %42, i64 noundef 2000000) #5
  br label %45

45:
  store atomic i32 0, ptr %29 seq_cst, align 4
  %46 = load atomic i32, ptr %28 acquire, align 128
  %47 = icmp eq i32 %46, %27
  br i1 %47, label %48, label %39

48:
  store i64 0, ptr %3, align 8
  store atomic i64 0, ptr %4 release, align 128
  br label %49

49:
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
  %26 = getelementptr inbounds i8, ptr %0, i64 896
  %27 = tail call i32 %25(ptr noundef nonnull %26) #6
  %28 = load atomic i32, ptr %1 seq_cst, align 4
  %29 = icmp eq i32 %28, %2
  br i1 %29, label %30, label %38

30:
  %31 = getelementptr inbounds i8, ptr %0, i64 808
  %32 = getelementptr inbounds i8, ptr %0, i64 1024
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
  %6 = getelementptr inbounds i8, ptr %0, i64 1280
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
