%struct.device_launch = type { ptr, i64, i64, i64, i64, i64, i64, i64 }
%struct.device_patch = type { i64, i64, i64 }

define i64 @smelt_launch(ptr nocapture noundef readonly %0, i64 noundef %1, ptr noundef %2, ptr noundef %3, ptr noundef %4, ptr nocapture noundef readonly %5) local_unnamed_addr #0 {
  %7 = icmp sgt i64 %1, 0
  br i1 %7, label %8, label %50

8:
  %9 = phi i64 [ %43, %42 ], [ 0, %6 ]
  %10 = getelementptr %struct.device_launch, ptr %0, i64 %9
  %11 = getelementptr inbounds i8, ptr %10, i64 48
  %12 = load i64, ptr %11, align 8
  %13 = getelementptr i64, ptr %2, i64 %12
  %14 = getelementptr inbounds i8, ptr %10, i64 56
  %15 = load i64, ptr %14, align 8
  %16 = icmp sgt i64 %15, 0
  br i1 %16, label %36, label %17

17:
  %18 = load ptr, ptr %10, align 8
  %19 = getelementptr inbounds i8, ptr %10, i64 8
  %20 = load i64, ptr %19, align 8
  %21 = trunc i64 %20 to i32
  %22 = getelementptr inbounds i8, ptr %10, i64 16
  %23 = load i64, ptr %22, align 8
  %24 = trunc i64 %23 to i32
  %25 = getelementptr inbounds i8, ptr %10, i64 24
  %26 = load i64, ptr %25, align 8
  %27 = trunc i64 %26 to i32
  %28 = getelementptr inbounds i8, ptr %10, i64 32
  %29 = load i64, ptr %28, align 8
  %30 = trunc i64 %29 to i32
  %31 = getelementptr inbounds i8, ptr %10, i64 40
  %32 = load i64, ptr %31, align 8
  %33 = trunc i64 %32 to i32
  %34 = tail call i32 %5(ptr noundef %18, i32 noundef %21, i32 noundef %24, i32 noundef %27, i32 noundef %30, i32 noundef 1, i32 noundef 1, i32 noundef %33, ptr noundef %4, ptr noundef %3, ptr noundef null) #2
  %35 = icmp eq i32 %34, 0
  br i1 %35, label %42, label %45

36:
  %37 = phi i64 [ %40, %36 ], [ 0, %8 ]
  %38 = getelementptr i64, ptr %13, i64 %37
  %39 = getelementptr ptr, ptr %3, i64 %37
  store ptr %38, ptr %39, align 8
  %40 = add nuw nsw i64 %37, 1
  %41 = icmp eq i64 %40, %15
  br i1 %41, label %17, label %36

42:
  %43 = add nuw nsw i64 %9, 1
  %44 = icmp eq i64 %43, %1
  br i1 %44, label %50, label %8

45:
  %46 = shl i64 %9, 32
  %47 = add i64 %46, 4294967296
  %48 = zext i32 %34 to i64
  %49 = or disjoint i64 %47, %48
  br label %50

50:
  %51 = phi i64 [ %49, %45 ], [ 0, %6 ], [ 0, %42 ]
  ret i64 %51
}

declare void @llvm.lifetime.start.p0(i64 immarg, ptr nocapture) #1

declare void @llvm.lifetime.end.p0(i64 immarg, ptr nocapture) #1

define i64 @smelt_device_call(ptr nocapture noundef readonly %0, ptr noundef %1, ptr noundef %2, ptr noundef %3) local_unnamed_addr #0 {
  %5 = alloca ptr, align 8
  %6 = alloca i32, align 4
  %7 = alloca ptr, align 8
  %8 = icmp eq ptr %3, null
  br i1 %8, label %9, label %17

9:
  %10 = getelementptr inbounds i8, ptr %0, i64 96
  %11 = load i64, ptr %10, align 8
  %12 = getelementptr inbounds i8, ptr %0, i64 104
  %13 = load i64, ptr %12, align 8
  %14 = add i64 %13, %11
  %15 = shl i64 %14, 3
  %16 = alloca i8, i64 %15, align 16
  br label %17

17:
  %18 = phi ptr [ %16, %9 ], [ %3, %4 ]
  call void @llvm.lifetime.start.p0(i64 8, ptr nonnull %7) #3
  store ptr null, ptr %7, align 8
  %19 = load ptr, ptr %0, align 8
  %20 = call i32 %19(ptr noundef nonnull %7) #2
  %21 = load ptr, ptr %7, align 8
  %22 = getelementptr inbounds i8, ptr %0, i64 64
  %23 = load ptr, ptr %22, align 8
  %24 = icmp eq ptr %21, %23
  br i1 %24, label %25, label %26

25:
  call void @llvm.lifetime.end.p0(i64 8, ptr nonnull %7) #3
  br label %31

26:
  %27 = getelementptr inbounds i8, ptr %0, i64 8
  %28 = load ptr, ptr %27, align 8
  %29 = call i32 %28(ptr noundef %23) #2
  %30 = icmp eq i32 %29, 0
  call void @llvm.lifetime.end.p0(i64 8, ptr nonnull %7) #3
  br i1 %30, label %31, label %184

31:
  call void @llvm.lifetime.start.p0(i64 4, ptr nonnull %6) #3
  store i32 1, ptr %6, align 4
  %32 = getelementptr inbounds i8, ptr %0, i64 144
  %33 = load i64, ptr %32, align 8
  %34 = getelementptr i64, ptr %1, i64 %33
  %35 = getelementptr inbounds i8, ptr %0, i64 24
  %36 = load ptr, ptr %35, align 8
  %37 = call i32 %36(ptr noundef %2, ptr noundef nonnull %6) #2
  %38 = icmp ne i32 %37, 0
  %39 = load i32, ptr %6, align 4
  %40 = icmp ne i32 %39, 0
  %41 = select i1 %38, i1 true, i1 %40
  br i1 %41, label %177, label %42

42:
  %43 = getelementptr inbounds i8, ptr %0, i64 136
  %44 = load i64, ptr %43, align 8
  %45 = icmp slt i64 %44, 1
  br i1 %45, label %74, label %46

46:
  %47 = getelementptr inbounds i8, ptr %0, i64 32
  %48 = getelementptr inbounds i8, ptr %0, i64 128
  br label %49

49:
  %50 = phi i64 [ 0, %46 ], [ %71, %70 ]
  %51 = load ptr, ptr %47, align 8
  %52 = getelementptr i64, ptr %34, i64 %50
  %53 = load ptr, ptr %48, align 8
  %54 = getelementptr i64, ptr %53, i64 %50
  %55 = load i64, ptr %54, align 8
  %56 = call i32 %51(ptr noundef %52, i64 noundef %55, ptr noundef %2) #2
  %57 = icmp eq i32 %56, 0
  br i1 %57, label %70, label %58

58:
  %59 = icmp eq i64 %50, 0
  br i1 %59, label %177, label %60

60:
  %61 = getelementptr inbounds i8, ptr %0, i64 40
  br label %62

62:
  %63 = phi i64 [ %50, %60 ], [ %64, %62 ]
  %64 = add nsw i64 %63, -1
  %65 = load ptr, ptr %61, align 8
  %66 = getelementptr i64, ptr %34, i64 %64
  %67 = load i64, ptr %66, align 8
  %68 = call i32 %65(i64 noundef %67, ptr noundef %2) #2
  %69 = icmp sgt i64 %63, 1
  br i1 %69, label %62, label %177

70:
  %71 = add nuw nsw i64 %50, 1
  %72 = load i64, ptr %43, align 8
  %73 = icmp slt i64 %71, %72
  br i1 %73, label %49, label %74

74:
  %75 = getelementptr inbounds i8, ptr %0, i64 96
  %76 = load i64, ptr %75, align 8
  %77 = icmp sgt i64 %76, 0
  br i1 %77, label %78, label %80

78:
  %79 = getelementptr inbounds i8, ptr %0, i64 88
  br label %86

80:
  %81 = getelementptr inbounds i8, ptr %0, i64 120
  %82 = load i64, ptr %81, align 8
  %83 = icmp sgt i64 %82, 0
  br i1 %83, label %84, label %95

84:
  %85 = getelementptr inbounds i8, ptr %0, i64 112
  br label %96

86:
  %87 = phi i64 [ 0, %78 ], [ %92, %86 ]
  %88 = load ptr, ptr %79, align 8
  %89 = getelementptr i64, ptr %88, i64 %87
  %90 = load i64, ptr %89, align 8
  %91 = getelementptr i64, ptr %18, i64 %87
  store i64 %90, ptr %91, align 8
  %92 = add nuw nsw i64 %87, 1
  %93 = load i64, ptr %75, align 8
  %94 = icmp slt i64 %92, %93
  br i1 %94, label %86, label %80

95:
  br i1 %8, label %112, label %177

96:
  %97 = phi i64 [ 0, %84 ], [ %109, %96 ]
  %98 = load ptr, ptr %85, align 8
  %99 = getelementptr %struct.device_patch, ptr %98, i64 %97
  %100 = getelementptr inbounds i8, ptr %99, i64 8
  %101 = load i64, ptr %100, align 8
  %102 = getelementptr i64, ptr %1, i64 %101
  %103 = load i64, ptr %102, align 8
  %104 = getelementptr inbounds i8, ptr %99, i64 16
  %105 = load i64, ptr %104, align 8
  %106 = add i64 %105, %103
  %107 = load i64, ptr %99, align 8
  %108 = getelementptr i64, ptr %18, i64 %107
  store i64 %106, ptr %108, align 8
  %109 = add nuw nsw i64 %97, 1
  %110 = load i64, ptr %81, align 8
  %111 = icmp slt i64 %109, %110
  br i1 %111, label %96, label %95

112:
  %113 = getelementptr inbounds i8, ptr %0, i64 72
  %114 = load ptr, ptr %113, align 8
  %115 = getelementptr inbounds i8, ptr %0, i64 80
  %116 = load i64, ptr %115, align 8
  %117 = load i64, ptr %75, align 8
  %118 = getelementptr i64, ptr %18, i64 %117
  %119 = getelementptr inbounds i8, ptr %0, i64 48
  %120 = load ptr, ptr %119, align 8
  %121 = icmp sgt i64 %116, 0
  br i1 %121, label %122, label %164

122:
  %123 = phi i64 [ %157, %156 ], [ 0, %112 ]
  %124 = getelementptr %struct.device_launch, ptr %114, i64 %123
  %125 = getelementptr inbounds i8, ptr %124, i64 48
  %126 = load i64, ptr %125, align 8
  %127 = getelementptr i64, ptr %18, i64 %126
  %128 = getelementptr inbounds i8, ptr %124, i64 56
  %129 = load i64, ptr %128, align 8
  %130 = icmp sgt i64 %129, 0
  br i1 %130, label %150, label %131

131:
  %132 = load ptr, ptr %124, align 8
  %133 = getelementptr inbounds i8, ptr %124, i64 8
  %134 = load i64, ptr %133, align 8
  %135 = trunc i64 %134 to i32
  %136 = getelementptr inbounds i8, ptr %124, i64 16
  %137 = load i64, ptr %136, align 8
  %138 = trunc i64 %137 to i32
  %139 = getelementptr inbounds i8, ptr %124, i64 24
  %140 = load i64, ptr %139, align 8
  %141 = trunc i64 %140 to i32
  %142 = getelementptr inbounds i8, ptr %124, i64 32
  %143 = load i64, ptr %142, align 8
  %144 = trunc i64 %143 to i32
  %145 = getelementptr inbounds i8, ptr %124, i64 40
  %146 = load i64, ptr %145, align 8
  %147 = trunc i64 %146 to i32
  %148 = call i32 %120(ptr noundef %132, i32 noundef %135, i32 noundef %138, i32 noundef %141, i32 noundef %144, i32 noundef 1, i32 noundef 1, i32 noundef %147, ptr noundef %2, ptr noundef %118, ptr noundef null) #2
  %149 = icmp eq i32 %148, 0
  br i1 %149, label %156, label %159

150:
  %151 = phi i64 [ %154, %150 ], [ 0, %122 ]
  %152 = getelementptr i64, ptr %127, i64 %151
  %153 = getelementptr ptr, ptr %118, i64 %151
  store ptr %152, ptr %153, align 8
  %154 = add nuw nsw i64 %151, 1
  %155 = icmp eq i64 %154, %129
  br i1 %155, label %131, label %150

156:
  %157 = add nuw nsw i64 %123, 1
  %158 = icmp eq i64 %157, %116
  br i1 %158, label %164, label %122

159:
  %160 = shl i64 %123, 32
  %161 = add i64 %160, 4294967296
  %162 = zext i32 %148 to i64
  %163 = or disjoint i64 %161, %162
  br label %164

164:
  %165 = phi i64 [ %163, %159 ], [ 0, %112 ], [ 0, %156 ]
  %166 = getelementptr inbounds i8, ptr %0, i64 152
  %167 = load i64, ptr %166, align 8
  %168 = icmp eq i64 %167, 0
  br i1 %168, label %177, label %169

169:
  %170 = getelementptr inbounds i8, ptr %0, i64 40
  %171 = load ptr, ptr %170, align 8
  %172 = load i64, ptr %43, align 8
  %173 = getelementptr i64, ptr %34, i64 %172
  %174 = getelementptr i8, ptr %173, i64 -8
  %175 = load i64, ptr %174, align 8
  %176 = call i32 %171(i64 noundef %175, ptr noundef %2) #2
  br label %177

177:
  %178 = phi i64 [ -1, %31 ], [ 0, %95 ], [ %165, %169 ], [ %165, %164 ], [ -1, %58 ], [ -1, %62 ]
  call void @llvm.lifetime.end.p0(i64 4, ptr nonnull %6) #3
  call void @llvm.lifetime.start.p0(i64 8, ptr nonnull %5) #3
  br i1 %24, label %183, label %179

179:
  %180 = getelementptr inbounds i8, ptr %0, i64 16
  %181 = load ptr, ptr %180, align 8
  %182 = call i32 %181(ptr noundef nonnull %5) #2
  br label %183

183:
  call void @llvm.lifetime.end.p0(i64 8, ptr nonnull %5) #3
  br label %184

184:
  %185 = phi i64 [ %178, %183 ], [ -1, %26 ]
  ret i64 %185
}

define i32 @smelt_device_free(ptr nocapture noundef readonly %0, i64 noundef %1, ptr noundef %2) local_unnamed_addr #0 {
  %4 = alloca ptr, align 8
  %5 = alloca ptr, align 8
  call void @llvm.lifetime.start.p0(i64 8, ptr nonnull %5) #3
  store ptr null, ptr %5, align 8
  %6 = load ptr, ptr %0, align 8
  %7 = call i32 %6(ptr noundef nonnull %5) #2
  %8 = load ptr, ptr %5, align 8
  %9 = getelementptr inbounds i8, ptr %0, i64 64
  %10 = load ptr, ptr %9, align 8
  %11 = icmp eq ptr %8, %10
  br i1 %11, label %17, label %12

12:
  %13 = getelementptr inbounds i8, ptr %0, i64 8
  %14 = load ptr, ptr %13, align 8
  %15 = call i32 %14(ptr noundef %10) #2
  %16 = icmp eq i32 %15, 0
  call void @llvm.lifetime.end.p0(i64 8, ptr nonnull %5) #3
  br i1 %16, label %21, label %30

17:
  call void @llvm.lifetime.end.p0(i64 8, ptr nonnull %5) #3
  %18 = getelementptr inbounds i8, ptr %0, i64 40
  %19 = load ptr, ptr %18, align 8
  %20 = call i32 %19(i64 noundef %1, ptr noundef %2) #2
  call void @llvm.lifetime.start.p0(i64 8, ptr nonnull %4) #3
  br label %28

21:
  %22 = getelementptr inbounds i8, ptr %0, i64 40
  %23 = load ptr, ptr %22, align 8
  %24 = call i32 %23(i64 noundef %1, ptr noundef %2) #2
  call void @llvm.lifetime.start.p0(i64 8, ptr nonnull %4) #3
  %25 = getelementptr inbounds i8, ptr %0, i64 16
  %26 = load ptr, ptr %25, align 8
  %27 = call i32 %26(ptr noundef nonnull %4) #2
  br label %28

28:
  %29 = phi i32 [ %20, %17 ], [ %24, %21 ]
  call void @llvm.lifetime.end.p0(i64 8, ptr nonnull %4) #3
  br label %30

30:
  %31 = phi i32 [ %29, %28 ], [ -1, %12 ]
  ret i32 %31
}

define i32 @smelt_device_replay(ptr nocapture noundef readonly %0, ptr noundef %1, ptr noundef %2) local_unnamed_addr #0 {
  %4 = alloca ptr, align 8
  %5 = alloca ptr, align 8
  call void @llvm.lifetime.start.p0(i64 8, ptr nonnull %5) #3
  store ptr null, ptr %5, align 8
  %6 = load ptr, ptr %0, align 8
  %7 = call i32 %6(ptr noundef nonnull %5) #2
  %8 = load ptr, ptr %5, align 8
  %9 = getelementptr inbounds i8, ptr %0, i64 64
  %10 = load ptr, ptr %9, align 8
  %11 = icmp eq ptr %8, %10
  br i1 %11, label %17, label %12

12:
  %13 = getelementptr inbounds i8, ptr %0, i64 8
  %14 = load ptr, ptr %13, align 8
  %15 = call i32 %14(ptr noundef %10) #2
  %16 = icmp eq i32 %15, 0
  call void @llvm.lifetime.end.p0(i64 8, ptr nonnull %5) #3
  br i1 %16, label %21, label %30

17:
  call void @llvm.lifetime.end.p0(i64 8, ptr nonnull %5) #3
  %18 = getelementptr inbounds i8, ptr %0, i64 56
  %19 = load ptr, ptr %18, align 8
  %20 = call i32 %19(ptr noundef %1, ptr noundef %2) #2
  call void @llvm.lifetime.start.p0(i64 8, ptr nonnull %4) #3
  br label %28

21:
  %22 = getelementptr inbounds i8, ptr %0, i64 56
  %23 = load ptr, ptr %22, align 8
  %24 = call i32 %23(ptr noundef %1, ptr noundef %2) #2
  call void @llvm.lifetime.start.p0(i64 8, ptr nonnull %4) #3
  %25 = getelementptr inbounds i8, ptr %0, i64 16
  %26 = load ptr, ptr %25, align 8
  %27 = call i32 %26(ptr noundef nonnull %4) #2
  br label %28

28:
  %29 = phi i32 [ %20, %17 ], [ %24, %21 ]
  call void @llvm.lifetime.end.p0(i64 8, ptr nonnull %4) #3
  br label %30

30:
  %31 = phi i32 [ %29, %28 ], [ -1, %12 ]
  ret i32 %31
}

attributes #0 = { nounwind "no-builtins" "no-jump-tables"="true" }
attributes #1 = { mustprogress nocallback nofree nosync nounwind willreturn memory(argmem: readwrite) }
attributes #2 = { nobuiltin nounwind "no-builtins" }
attributes #3 = { nounwind }
