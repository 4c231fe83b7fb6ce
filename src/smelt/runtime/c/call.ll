%struct.ring_entry = type { ptr, i64 }
%struct.nest = type { i64, i64, i64, i64, ptr }
%struct.argument = type { i64, ptr, i64, i64, ptr, ptr, i64, i64, i64, i64 }
%struct.captured = type { ptr, ptr, %struct.argument }
%struct.result = type { ptr, i64, ptr, ptr, ptr, ptr, ptr }
%struct.patch = type { i64, i64, i64 }
%struct.arena_patch = type { i64, i64 }
%struct.chunk = type { ptr, i64, i64, i64 }
%struct.result_nest = type { i64, i64, ptr, ptr }

@the_state = internal unnamed_addr global ptr null, align 8

define void @smelt_bind(ptr noundef %0) local_unnamed_addr #0 {
  store ptr %0, ptr @the_state, align 8
  ret void
}

define ptr @smelt_array(ptr nocapture noundef readonly %0, ptr nocapture noundef %1) local_unnamed_addr #1 {
  %3 = load ptr, ptr @the_state, align 8
  %4 = getelementptr inbounds i8, ptr %0, i64 32
  %5 = load ptr, ptr %4, align 8
  %6 = icmp eq ptr %5, null
  br i1 %6, label %24, label %7

7:
  %8 = getelementptr inbounds i8, ptr %5, i64 8
  br label %12

9:
  %10 = add nuw nsw i64 %13, 1
  %11 = icmp eq i64 %10, 8
  br i1 %11, label %24, label %12

12:
  %13 = phi i64 [ 0, %7 ], [ %10, %9 ]
  %14 = getelementptr [8 x %struct.ring_entry], ptr %8, i64 0, i64 %13
  %15 = load ptr, ptr %14, align 8
  %16 = icmp eq ptr %15, null
  br i1 %16, label %24, label %17

17:
  %18 = load i32, ptr %15, align 8
  %19 = icmp eq i32 %18, 1
  br i1 %19, label %20, label %9

20:
  %21 = getelementptr inbounds i8, ptr %14, i64 8
  %22 = load i64, ptr %21, align 8
  store i64 %22, ptr %1, align 8
  %23 = getelementptr inbounds i8, ptr %3, i64 272
  br label %52

24:
  %25 = getelementptr inbounds i8, ptr %3, i64 312
  %26 = load ptr, ptr %25, align 8
  %27 = getelementptr inbounds i8, ptr %0, i64 40
  %28 = load ptr, ptr %27, align 8
  %29 = tail call ptr %26(ptr noundef %28) #4
  %30 = icmp eq ptr %29, null
  br i1 %30, label %88, label %31

31:
  %32 = getelementptr inbounds i8, ptr %29, i64 48
  %33 = load ptr, ptr %32, align 8
  %34 = getelementptr inbounds i8, ptr %29, i64 16
  %35 = load ptr, ptr %34, align 8
  %36 = ptrtoint ptr %35 to i64
  store i64 %36, ptr %1, align 8
  %37 = getelementptr inbounds i8, ptr %3, i64 272
  %38 = load ptr, ptr %37, align 8
  tail call void %38(ptr noundef %33) #4
  %39 = getelementptr inbounds i8, ptr %3, i64 280
  %40 = load ptr, ptr %39, align 8
  tail call void %40(ptr noundef nonnull %29) #4
  br i1 %6, label %57, label %41

41:
  %42 = getelementptr inbounds i8, ptr %5, i64 8
  %43 = load i64, ptr %5, align 8
  %44 = getelementptr [8 x %struct.ring_entry], ptr %42, i64 0, i64 %43
  %45 = load ptr, ptr %44, align 8
  %46 = add i64 %43, 1
  %47 = srem i64 %46, 8
  store i64 %47, ptr %5, align 8
  %48 = load ptr, ptr %37, align 8
  tail call void %48(ptr noundef %33) #4
  store ptr %33, ptr %44, align 8
  %49 = load i64, ptr %1, align 8
  %50 = getelementptr inbounds i8, ptr %44, i64 8
  store i64 %49, ptr %50, align 8
  %51 = icmp eq ptr %45, null
  br i1 %51, label %57, label %52

52:
  %53 = phi ptr [ %23, %20 ], [ %39, %41 ]
  %54 = phi ptr [ %15, %20 ], [ %45, %41 ]
  %55 = phi ptr [ %15, %20 ], [ %33, %41 ]
  %56 = load ptr, ptr %53, align 8
  tail call void %56(ptr noundef nonnull %54) #4
  br label %57

57:
  %58 = phi ptr [ %33, %41 ], [ %33, %31 ], [ %55, %52 ]
  %59 = icmp eq ptr %58, null
  br i1 %59, label %88, label %60

60:
  %61 = getelementptr inbounds i8, ptr %3, i64 272
  %62 = load ptr, ptr %61, align 8
  %63 = load ptr, ptr %0, align 8
  tail call void %62(ptr noundef %63) #4
  %64 = getelementptr inbounds i8, ptr %3, i64 464
  %65 = load ptr, ptr %64, align 8
  %66 = getelementptr inbounds i8, ptr %3, i64 64
  %67 = load ptr, ptr %66, align 8
  %68 = load ptr, ptr %0, align 8
  %69 = getelementptr inbounds i8, ptr %0, i64 8
  %70 = load i64, ptr %69, align 8
  %71 = trunc i64 %70 to i32
  %72 = getelementptr inbounds i8, ptr %0, i64 16
  %73 = load ptr, ptr %72, align 8
  %74 = getelementptr inbounds i8, ptr %0, i64 48
  %75 = load ptr, ptr %74, align 8
  %76 = load i64, ptr %1, align 8
  %77 = tail call ptr %65(ptr noundef %67, ptr noundef %68, i32 noundef %71, ptr noundef %73, ptr noundef %75, i64 noundef %76, i32 noundef 1281, ptr noundef null) #4
  %78 = icmp eq ptr %77, null
  br i1 %78, label %84, label %79

79:
  %80 = getelementptr inbounds i8, ptr %3, i64 472
  %81 = load ptr, ptr %80, align 8
  %82 = tail call i32 %81(ptr noundef nonnull %77, ptr noundef nonnull %58) #4
  %83 = icmp slt i32 %82, 0
  br i1 %83, label %84, label %88

84:
  %85 = phi ptr [ %58, %60 ], [ %77, %79 ]
  %86 = getelementptr inbounds i8, ptr %3, i64 280
  %87 = load ptr, ptr %86, align 8
  tail call void %87(ptr noundef nonnull %85) #4
  br label %88

88:
  %89 = phi ptr [ null, %57 ], [ %77, %79 ], [ null, %24 ], [ null, %84 ]
  ret ptr %89
}

declare void @llvm.lifetime.start.p0(i64 immarg, ptr nocapture) #2

declare void @llvm.lifetime.end.p0(i64 immarg, ptr nocapture) #2

define ptr @smelt_result(ptr nocapture noundef readonly %0, ptr nocapture noundef %1) local_unnamed_addr #1 {
  %3 = load ptr, ptr @the_state, align 8
  %4 = tail call ptr @smelt_array(ptr noundef %0, ptr noundef %1) #5
  %5 = icmp eq ptr %4, null
  br i1 %5, label %62, label %6

6:
  %7 = getelementptr inbounds i8, ptr %3, i64 480
  %8 = load ptr, ptr %7, align 8
  %9 = getelementptr inbounds i8, ptr %3, i64 80
  %10 = load ptr, ptr %9, align 8
  %11 = tail call ptr %8(ptr noundef %10, i64 noundef 0) #4
  %12 = icmp eq ptr %11, null
  br i1 %12, label %13, label %16

13:
  %14 = getelementptr inbounds i8, ptr %3, i64 280
  %15 = load ptr, ptr %14, align 8
  tail call void %15(ptr noundef nonnull %4) #4
  br label %62

16:
  %17 = getelementptr inbounds i8, ptr %3, i64 184
  %18 = load i64, ptr %17, align 8
  %19 = getelementptr i8, ptr %11, i64 %18
  store ptr %4, ptr %19, align 8
  %20 = getelementptr inbounds i8, ptr %3, i64 208
  %21 = load i64, ptr %20, align 8
  %22 = getelementptr inbounds i8, ptr %0, i64 24
  %23 = load ptr, ptr %22, align 8
  %24 = getelementptr inbounds i8, ptr %3, i64 272
  %25 = load ptr, ptr %24, align 8
  tail call void %25(ptr noundef %23) #4
  %26 = getelementptr i8, ptr %11, i64 %21
  store ptr %23, ptr %26, align 8
  %27 = getelementptr inbounds i8, ptr %3, i64 192
  %28 = load i64, ptr %27, align 8
  %29 = getelementptr inbounds i8, ptr %3, i64 240
  %30 = load ptr, ptr %29, align 8
  %31 = load ptr, ptr %24, align 8
  tail call void %31(ptr noundef %30) #4
  %32 = getelementptr i8, ptr %11, i64 %28
  store ptr %30, ptr %32, align 8
  %33 = getelementptr inbounds i8, ptr %3, i64 200
  %34 = load i64, ptr %33, align 8
  %35 = getelementptr inbounds i8, ptr %3, i64 248
  %36 = load ptr, ptr %35, align 8
  %37 = load ptr, ptr %24, align 8
  tail call void %37(ptr noundef %36) #4
  %38 = getelementptr i8, ptr %11, i64 %34
  store ptr %36, ptr %38, align 8
  %39 = getelementptr inbounds i8, ptr %3, i64 216
  %40 = load i64, ptr %39, align 8
  %41 = getelementptr inbounds i8, ptr %3, i64 256
  %42 = load ptr, ptr %41, align 8
  %43 = load ptr, ptr %24, align 8
  tail call void %43(ptr noundef %42) #4
  %44 = getelementptr i8, ptr %11, i64 %40
  store ptr %42, ptr %44, align 8
  %45 = getelementptr inbounds i8, ptr %3, i64 224
  %46 = load i64, ptr %45, align 8
  %47 = load ptr, ptr %41, align 8
  %48 = load ptr, ptr %24, align 8
  tail call void %48(ptr noundef %47) #4
  %49 = getelementptr i8, ptr %11, i64 %46
  store ptr %47, ptr %49, align 8
  %50 = load ptr, ptr %7, align 8
  %51 = getelementptr inbounds i8, ptr %3, i64 72
  %52 = load ptr, ptr %51, align 8
  %53 = tail call ptr %50(ptr noundef %52, i64 noundef 0) #4
  %54 = icmp eq ptr %53, null
  br i1 %54, label %55, label %58

55:
  %56 = getelementptr inbounds i8, ptr %3, i64 280
  %57 = load ptr, ptr %56, align 8
  tail call void %57(ptr noundef nonnull %11) #4
  br label %62

58:
  %59 = getelementptr inbounds i8, ptr %3, i64 176
  %60 = load i64, ptr %59, align 8
  %61 = getelementptr i8, ptr %53, i64 %60
  store ptr %11, ptr %61, align 8
  br label %62

62:
  %63 = phi ptr [ null, %2 ], [ null, %13 ], [ %53, %58 ], [ null, %55 ]
  ret ptr %63
}

define ptr @smelt_call(ptr noundef %0, ptr nocapture noundef readonly %1, i64 noundef %2, ptr noundef %3) local_unnamed_addr #1 {
  %5 = alloca ptr, align 8
  %6 = alloca ptr, align 8
  %7 = load ptr, ptr @the_state, align 8
  call void @llvm.lifetime.start.p0(i64 8, ptr nonnull %5) #6
  call void @llvm.lifetime.start.p0(i64 8, ptr nonnull %6) #6
  %8 = getelementptr inbounds i8, ptr %7, i64 296
  %9 = load ptr, ptr %8, align 8
  %10 = load ptr, ptr %7, align 8
  %11 = getelementptr inbounds i8, ptr %7, i64 8
  %12 = load ptr, ptr %11, align 8
  %13 = tail call ptr %9(ptr noundef %10, ptr noundef %12) #4
  %14 = icmp eq ptr %13, null
  br i1 %14, label %124, label %15

15:
  %16 = getelementptr inbounds i8, ptr %7, i64 280
  %17 = load ptr, ptr %16, align 8
  tail call void %17(ptr noundef nonnull %13) #4
  %18 = getelementptr inbounds i8, ptr %7, i64 160
  %19 = load i64, ptr %18, align 8
  %20 = getelementptr i8, ptr %0, i64 %19
  %21 = load ptr, ptr %20, align 8
  %22 = getelementptr inbounds i8, ptr %7, i64 40
  %23 = load ptr, ptr %22, align 8
  %24 = icmp eq ptr %13, %23
  %25 = icmp ne ptr %21, null
  %26 = select i1 %24, i1 %25, i1 false
  br i1 %26, label %27, label %33

27:
  %28 = getelementptr inbounds i8, ptr %21, i64 8
  %29 = load ptr, ptr %28, align 8
  %30 = getelementptr inbounds i8, ptr %7, i64 56
  %31 = load ptr, ptr %30, align 8
  %32 = icmp eq ptr %29, %31
  br i1 %32, label %35, label %33

33:
  %34 = tail call fastcc ptr @in_python(ptr noundef nonnull %7, ptr noundef nonnull %0, ptr noundef %1, i64 noundef %2, ptr noundef %3) #5
  br label %124

35:
  %36 = getelementptr inbounds i8, ptr %7, i64 288
  %37 = load ptr, ptr %36, align 8
  %38 = getelementptr inbounds i8, ptr %7, i64 152
  %39 = load ptr, ptr %38, align 8
  %40 = call i32 %37(ptr noundef %39, ptr noundef null, ptr noundef nonnull %5) #4
  %41 = icmp slt i32 %40, 0
  br i1 %41, label %124, label %42

42:
  %43 = load ptr, ptr %5, align 8
  %44 = getelementptr inbounds i8, ptr %7, i64 168
  %45 = load i64, ptr %44, align 8
  %46 = getelementptr i8, ptr %43, i64 %45
  %47 = load ptr, ptr %46, align 8
  %48 = load ptr, ptr %16, align 8
  call void %48(ptr noundef %43) #4
  %49 = getelementptr inbounds i8, ptr %21, i64 32
  %50 = load i64, ptr %49, align 8
  %51 = icmp slt i64 %50, 1
  br i1 %51, label %120, label %52

52:
  %53 = icmp eq ptr %3, null
  %54 = getelementptr inbounds i8, ptr %7, i64 344
  %55 = getelementptr inbounds i8, ptr %7, i64 384
  %56 = getelementptr inbounds i8, ptr %7, i64 352
  %57 = getelementptr inbounds i8, ptr %7, i64 144
  br label %58

58:
  %59 = phi i64 [ 1, %52 ], [ %118, %117 ]
  %60 = getelementptr [0 x i64], ptr %49, i64 0, i64 %59
  %61 = load i64, ptr %60, align 8
  %62 = inttoptr i64 %61 to ptr
  %63 = getelementptr inbounds i8, ptr %62, i64 16
  %64 = load i64, ptr %63, align 8
  %65 = icmp eq i64 %64, %2
  br i1 %65, label %66, label %117

66:
  br i1 %53, label %102, label %67

67:
  %68 = load ptr, ptr %54, align 8
  %69 = call i64 %68(ptr noundef nonnull %3) #4
  %70 = getelementptr inbounds i8, ptr %62, i64 32
  %71 = load i64, ptr %70, align 8
  %72 = icmp eq i64 %69, %71
  br i1 %72, label %73, label %117

73:
  %74 = icmp slt i64 %69, 1
  br i1 %74, label %106, label %75

75:
  %76 = getelementptr inbounds i8, ptr %62, i64 24
  br label %77

77:
  %78 = phi i64 [ 0, %75 ], [ %99, %98 ]
  %79 = load ptr, ptr %56, align 8
  %80 = call ptr %79(ptr noundef nonnull %3, i64 noundef %78) #4
  %81 = load ptr, ptr %76, align 8
  %82 = getelementptr ptr, ptr %81, i64 %78
  %83 = load ptr, ptr %82, align 8
  %84 = icmp eq ptr %80, %83
  br i1 %84, label %98, label %85

85:
  %86 = getelementptr inbounds i8, ptr %80, i64 8
  %87 = load ptr, ptr %86, align 8
  %88 = load ptr, ptr %57, align 8
  %89 = icmp eq ptr %87, %88
  br i1 %89, label %90, label %117

90:
  %91 = getelementptr inbounds i8, ptr %83, i64 8
  %92 = load ptr, ptr %91, align 8
  %93 = icmp eq ptr %92, %87
  br i1 %93, label %94, label %117

94:
  %95 = load ptr, ptr %55, align 8
  %96 = call i32 %95(ptr noundef nonnull %80, ptr noundef nonnull %83) #4
  %97 = icmp eq i32 %96, 0
  br i1 %97, label %98, label %117

98:
  %99 = add nuw nsw i64 %78, 1
  %100 = load i64, ptr %70, align 8
  %101 = icmp slt i64 %99, %100
  br i1 %101, label %77, label %106

102:
  %103 = getelementptr inbounds i8, ptr %62, i64 32
  %104 = load i64, ptr %103, align 8
  %105 = icmp eq i64 %104, 0
  br i1 %105, label %106, label %117

106:
  %107 = getelementptr inbounds i8, ptr %62, i64 56
  %108 = load ptr, ptr %107, align 8
  %109 = load ptr, ptr %5, align 8
  %110 = icmp eq ptr %108, %109
  br i1 %110, label %111, label %117

111:
  %112 = getelementptr inbounds i8, ptr %62, i64 64
  %113 = load ptr, ptr %112, align 8
  %114 = icmp eq ptr %113, %47
  br i1 %114, label %115, label %117

115:
  %116 = call fastcc zeroext i1 @attempt(ptr noundef nonnull %7, ptr noundef nonnull %62, ptr noundef %1, i64 noundef %2, ptr noundef nonnull %6) #5
  br i1 %116, label %122, label %117

117:
  %118 = add i64 %59, 1
  %119 = icmp sgt i64 %118, %50
  br i1 %119, label %120, label %58

120:
  %121 = call fastcc ptr @in_python(ptr noundef nonnull %7, ptr noundef %0, ptr noundef %1, i64 noundef %2, ptr noundef %3) #5
  br label %124

122:
  %123 = load ptr, ptr %6, align 8
  br label %124

124:
  %125 = phi ptr [ null, %4 ], [ %34, %33 ], [ null, %35 ], [ %121, %120 ], [ %123, %122 ]
  call void @llvm.lifetime.end.p0(i64 8, ptr nonnull %6) #6
  call void @llvm.lifetime.end.p0(i64 8, ptr nonnull %5) #6
  ret ptr %125
}

define internal fastcc ptr @in_python(ptr nocapture noundef readonly %0, ptr noundef %1, ptr nocapture noundef readonly %2, i64 noundef %3, ptr noundef %4) unnamed_addr #3 {
  %6 = icmp eq ptr %4, null
  br i1 %6, label %11, label %7

7:
  %8 = getelementptr inbounds i8, ptr %0, i64 344
  %9 = load ptr, ptr %8, align 8
  %10 = tail call i64 %9(ptr noundef nonnull %4) #4
  br label %11

11:
  %12 = phi i64 [ %10, %7 ], [ 0, %5 ]
  %13 = add i64 %12, %3
  %14 = getelementptr inbounds i8, ptr %0, i64 512
  %15 = load ptr, ptr %14, align 8
  %16 = shl i64 %13, 3
  %17 = add i64 %16, 8
  %18 = tail call ptr %15(i64 noundef %17) #4
  %19 = icmp eq ptr %18, null
  br i1 %19, label %20, label %24

20:
  %21 = getelementptr inbounds i8, ptr %0, i64 528
  %22 = load ptr, ptr %21, align 8
  %23 = tail call ptr %22() #4
  br label %42

24:
  store ptr %1, ptr %18, align 8
  %25 = icmp sgt i64 %13, 0
  br i1 %25, label %35, label %26

26:
  %27 = getelementptr inbounds i8, ptr %0, i64 304
  %28 = load ptr, ptr %27, align 8
  %29 = getelementptr inbounds i8, ptr %0, i64 48
  %30 = load ptr, ptr %29, align 8
  %31 = add i64 %3, 1
  %32 = tail call ptr %28(ptr noundef %30, ptr noundef nonnull %18, i64 noundef %31, ptr noundef %4) #4
  %33 = getelementptr inbounds i8, ptr %0, i64 520
  %34 = load ptr, ptr %33, align 8
  tail call void %34(ptr noundef nonnull %18) #4
  br label %42

35:
  %36 = phi i64 [ %39, %35 ], [ 0, %24 ]
  %37 = getelementptr ptr, ptr %2, i64 %36
  %38 = load ptr, ptr %37, align 8
  %39 = add nuw nsw i64 %36, 1
  %40 = getelementptr ptr, ptr %18, i64 %39
  store ptr %38, ptr %40, align 8
  %41 = icmp eq i64 %39, %13
  br i1 %41, label %26, label %35

42:
  %43 = phi ptr [ %32, %26 ], [ %23, %20 ]
  ret ptr %43
}

define internal fastcc noundef zeroext i1 @attempt(ptr nocapture noundef readonly %0, ptr nocapture noundef readonly %1, ptr nocapture noundef readonly %2, i64 noundef %3, ptr nocapture noundef writeonly %4) unnamed_addr #3 {
  %6 = alloca i32, align 4
  %7 = alloca i64, align 8
  %8 = alloca ptr, align 8
  %9 = getelementptr inbounds i8, ptr %1, i64 144
  %10 = load i64, ptr %9, align 8
  %11 = icmp slt i64 %10, 4097
  br i1 %11, label %12, label %14

12:
  %13 = alloca i8, i64 %10, align 64
  store ptr null, ptr %4, align 8
  br label %31

14:
  %15 = getelementptr inbounds i8, ptr %0, i64 512
  %16 = load ptr, ptr %15, align 8
  %17 = add nuw i64 %10, 64
  %18 = tail call ptr %16(i64 noundef %17) #4
  %19 = icmp eq ptr %18, null
  br i1 %19, label %20, label %21

20:
  store ptr null, ptr %4, align 8
  br label %27

21:
  %22 = ptrtoint ptr %18 to i64
  %23 = add i64 %22, 63
  %24 = and i64 %23, -64
  %25 = inttoptr i64 %24 to ptr
  store ptr null, ptr %4, align 8
  %26 = icmp eq i64 %24, 0
  br i1 %26, label %27, label %31

27:
  %28 = getelementptr inbounds i8, ptr %0, i64 528
  %29 = load ptr, ptr %28, align 8
  %30 = tail call ptr %29() #4
  br label %640

31:
  %32 = phi ptr [ %13, %12 ], [ %25, %21 ]
  %33 = phi ptr [ null, %12 ], [ %18, %21 ]
  %34 = getelementptr inbounds i8, ptr %1, i64 8
  %35 = load i64, ptr %34, align 8
  %36 = getelementptr ptr, ptr %32, i64 %35
  %37 = getelementptr inbounds i8, ptr %1, i64 48
  %38 = load i64, ptr %37, align 8
  %39 = icmp eq i64 %38, 0
  br i1 %39, label %183, label %40

40:
  %41 = getelementptr i64, ptr %36, i64 %35
  %42 = getelementptr inbounds i8, ptr %1, i64 32
  %43 = load i64, ptr %42, align 8
  %44 = add i64 %43, %3
  %45 = icmp sgt i64 %44, 0
  br i1 %45, label %172, label %48

46:
  %47 = load i64, ptr %37, align 8
  br label %48

48:
  %49 = phi i64 [ %47, %46 ], [ %38, %40 ]
  %50 = icmp slt i64 %49, 1
  br i1 %50, label %181, label %51

51:
  %52 = getelementptr inbounds i8, ptr %1, i64 40
  %53 = getelementptr inbounds i8, ptr %0, i64 256
  %54 = getelementptr inbounds i8, ptr %0, i64 136
  %55 = getelementptr inbounds i8, ptr %0, i64 424
  %56 = getelementptr inbounds i8, ptr %0, i64 432
  %57 = getelementptr inbounds i8, ptr %0, i64 384
  %58 = getelementptr inbounds i8, ptr %0, i64 144
  %59 = getelementptr inbounds i8, ptr %0, i64 128
  %60 = getelementptr inbounds i8, ptr %0, i64 360
  %61 = getelementptr inbounds i8, ptr %0, i64 368
  %62 = getelementptr inbounds i8, ptr %0, i64 120
  %63 = getelementptr inbounds i8, ptr %0, i64 344
  %64 = getelementptr inbounds i8, ptr %0, i64 352
  br label %65

65:
  %66 = phi i64 [ 0, %51 ], [ %169, %168 ]
  %67 = load ptr, ptr %52, align 8
  %68 = getelementptr %struct.nest, ptr %67, i64 %66
  %69 = getelementptr inbounds i8, ptr %68, i64 8
  %70 = load i64, ptr %69, align 8
  %71 = getelementptr ptr, ptr %41, i64 %70
  %72 = load ptr, ptr %71, align 8
  %73 = getelementptr inbounds i8, ptr %68, i64 24
  %74 = load i64, ptr %73, align 8
  %75 = getelementptr ptr, ptr %41, i64 %74
  %76 = load i64, ptr %68, align 8
  switch i64 %76, label %634 [
    i64 0, label %77
    i64 1, label %99
    i64 2, label %121
    i64 3, label %163
  ]

77:
  %78 = getelementptr inbounds i8, ptr %72, i64 8
  %79 = load ptr, ptr %78, align 8
  %80 = load ptr, ptr %62, align 8
  %81 = icmp eq ptr %79, %80
  br i1 %81, label %82, label %634

82:
  %83 = getelementptr inbounds i8, ptr %68, i64 16
  %84 = load i64, ptr %83, align 8
  %85 = load ptr, ptr %63, align 8
  %86 = load ptr, ptr %64, align 8
  %87 = call i64 %85(ptr noundef nonnull %72) #4
  %88 = icmp eq i64 %87, %84
  br i1 %88, label %89, label %634

89:
  %90 = icmp slt i64 %84, 1
  br i1 %90, label %168, label %94

91:
  %92 = add nuw nsw i64 %95, 1
  %93 = icmp eq i64 %92, %84
  br i1 %93, label %168, label %94

94:
  %95 = phi i64 [ %92, %91 ], [ 0, %89 ]
  %96 = call ptr %86(ptr noundef %72, i64 noundef %95) #4
  %97 = getelementptr ptr, ptr %75, i64 %95
  store ptr %96, ptr %97, align 8
  %98 = icmp eq ptr %96, null
  br i1 %98, label %634, label %91

99:
  %100 = getelementptr inbounds i8, ptr %72, i64 8
  %101 = load ptr, ptr %100, align 8
  %102 = load ptr, ptr %59, align 8
  %103 = icmp eq ptr %101, %102
  br i1 %103, label %104, label %634

104:
  %105 = getelementptr inbounds i8, ptr %68, i64 16
  %106 = load i64, ptr %105, align 8
  %107 = load ptr, ptr %60, align 8
  %108 = load ptr, ptr %61, align 8
  %109 = call i64 %107(ptr noundef nonnull %72) #4
  %110 = icmp eq i64 %109, %106
  br i1 %110, label %111, label %634

111:
  %112 = icmp slt i64 %106, 1
  br i1 %112, label %168, label %116

113:
  %114 = add nuw nsw i64 %117, 1
  %115 = icmp eq i64 %114, %106
  br i1 %115, label %168, label %116

116:
  %117 = phi i64 [ %114, %113 ], [ 0, %111 ]
  %118 = call ptr %108(ptr noundef %72, i64 noundef %117) #4
  %119 = getelementptr ptr, ptr %75, i64 %117
  store ptr %118, ptr %119, align 8
  %120 = icmp eq ptr %118, null
  br i1 %120, label %634, label %113

121:
  %122 = getelementptr inbounds i8, ptr %72, i64 8
  %123 = load ptr, ptr %122, align 8
  %124 = load ptr, ptr %54, align 8
  %125 = icmp eq ptr %123, %124
  br i1 %125, label %126, label %634

126:
  %127 = getelementptr inbounds i8, ptr %68, i64 16
  %128 = load i64, ptr %127, align 8
  %129 = getelementptr inbounds i8, ptr %68, i64 32
  %130 = load ptr, ptr %129, align 8
  call void @llvm.lifetime.start.p0(i64 8, ptr nonnull %7) #6
  store i64 0, ptr %7, align 8
  call void @llvm.lifetime.start.p0(i64 8, ptr nonnull %8) #6
  %131 = load ptr, ptr %55, align 8
  %132 = call i64 %131(ptr noundef nonnull %72) #4
  %133 = icmp eq i64 %132, %128
  br i1 %133, label %134, label %166

134:
  %135 = icmp slt i64 %128, 1
  br i1 %135, label %167, label %136

136:
  %137 = phi i64 [ %161, %160 ], [ 0, %134 ]
  %138 = load ptr, ptr %56, align 8
  %139 = getelementptr ptr, ptr %75, i64 %137
  %140 = call i32 %138(ptr noundef %72, ptr noundef nonnull %7, ptr noundef nonnull %8, ptr noundef %139) #4
  %141 = icmp eq i32 %140, 0
  br i1 %141, label %166, label %142

142:
  %143 = load ptr, ptr %8, align 8
  %144 = getelementptr ptr, ptr %130, i64 %137
  %145 = load ptr, ptr %144, align 8
  %146 = icmp eq ptr %143, %145
  br i1 %146, label %160, label %147

147:
  %148 = getelementptr inbounds i8, ptr %143, i64 8
  %149 = load ptr, ptr %148, align 8
  %150 = load ptr, ptr %58, align 8
  %151 = icmp eq ptr %149, %150
  br i1 %151, label %152, label %166

152:
  %153 = getelementptr inbounds i8, ptr %145, i64 8
  %154 = load ptr, ptr %153, align 8
  %155 = icmp eq ptr %154, %149
  br i1 %155, label %156, label %166

156:
  %157 = load ptr, ptr %57, align 8
  %158 = call i32 %157(ptr noundef nonnull %143, ptr noundef nonnull %145) #4
  %159 = icmp eq i32 %158, 0
  br i1 %159, label %160, label %166

160:
  %161 = add nuw nsw i64 %137, 1
  %162 = icmp eq i64 %161, %128
  br i1 %162, label %167, label %136

163:
  %164 = load ptr, ptr %53, align 8
  %165 = icmp eq ptr %72, %164
  br i1 %165, label %168, label %634

166:
  call void @llvm.lifetime.end.p0(i64 8, ptr nonnull %8) #6
  call void @llvm.lifetime.end.p0(i64 8, ptr nonnull %7) #6
  br label %634

167:
  call void @llvm.lifetime.end.p0(i64 8, ptr nonnull %8) #6
  call void @llvm.lifetime.end.p0(i64 8, ptr nonnull %7) #6
  br label %168

168:
  %169 = add nuw nsw i64 %66, 1
  %170 = load i64, ptr %37, align 8
  %171 = icmp slt i64 %169, %170
  br i1 %171, label %65, label %181

172:
  %173 = phi i64 [ %177, %172 ], [ 0, %40 ]
  %174 = getelementptr ptr, ptr %2, i64 %173
  %175 = load ptr, ptr %174, align 8
  %176 = getelementptr ptr, ptr %41, i64 %173
  store ptr %175, ptr %176, align 8
  %177 = add nuw nsw i64 %173, 1
  %178 = load i64, ptr %42, align 8
  %179 = add i64 %178, %3
  %180 = icmp slt i64 %177, %179
  br i1 %180, label %172, label %46

181:
  %182 = load i64, ptr %34, align 8
  br label %183

183:
  %184 = phi i64 [ %182, %181 ], [ %35, %31 ]
  %185 = phi ptr [ %41, %181 ], [ %2, %31 ]
  %186 = icmp sgt i64 %184, 0
  br i1 %186, label %187, label %200

187:
  %188 = getelementptr inbounds i8, ptr %1, i64 72
  %189 = getelementptr inbounds i8, ptr %0, i64 112
  %190 = getelementptr inbounds i8, ptr %0, i64 496
  %191 = getelementptr inbounds i8, ptr %0, i64 104
  %192 = getelementptr inbounds i8, ptr %0, i64 488
  %193 = getelementptr inbounds i8, ptr %0, i64 64
  %194 = getelementptr inbounds i8, ptr %0, i64 72
  %195 = getelementptr inbounds i8, ptr %0, i64 176
  %196 = getelementptr inbounds i8, ptr %0, i64 80
  %197 = getelementptr inbounds i8, ptr %0, i64 88
  %198 = getelementptr inbounds i8, ptr %0, i64 96
  %199 = getelementptr inbounds i8, ptr %0, i64 184
  br label %215

200:
  %201 = phi i64 [ %184, %183 ], [ %368, %366 ]
  %202 = getelementptr inbounds i8, ptr %0, i64 96
  %203 = getelementptr inbounds i8, ptr %1, i64 104
  %204 = load i64, ptr %203, align 8
  %205 = icmp slt i64 %204, 1
  br i1 %205, label %464, label %206

206:
  %207 = getelementptr inbounds i8, ptr %1, i64 96
  %208 = load ptr, ptr %207, align 8
  %209 = getelementptr inbounds i8, ptr %0, i64 80
  %210 = load ptr, ptr %209, align 8
  %211 = getelementptr inbounds i8, ptr %0, i64 88
  %212 = getelementptr inbounds i8, ptr %0, i64 232
  %213 = getelementptr inbounds i8, ptr %0, i64 256
  %214 = getelementptr inbounds i8, ptr %0, i64 184
  br label %370

215:
  %216 = phi i64 [ 0, %187 ], [ %367, %366 ]
  %217 = load ptr, ptr %188, align 8
  %218 = getelementptr %struct.argument, ptr %217, i64 %216
  %219 = getelementptr inbounds i8, ptr %218, i64 48
  %220 = load i64, ptr %219, align 8
  %221 = getelementptr ptr, ptr %185, i64 %220
  %222 = load ptr, ptr %221, align 8
  %223 = getelementptr ptr, ptr %32, i64 %216
  %224 = getelementptr i64, ptr %36, i64 %216
  call void @llvm.lifetime.start.p0(i64 4, ptr nonnull %6) #6
  store ptr null, ptr %223, align 8
  %225 = load i64, ptr %218, align 8
  switch i64 %225, label %362 [
    i64 5, label %226
    i64 0, label %231
    i64 1, label %329
    i64 2, label %337
    i64 3, label %349
    i64 4, label %358
  ]

226:
  %227 = getelementptr inbounds i8, ptr %222, i64 8
  %228 = load ptr, ptr %227, align 8
  %229 = load ptr, ptr %193, align 8
  %230 = icmp eq ptr %228, %229
  br i1 %230, label %264, label %362

231:
  %232 = getelementptr inbounds i8, ptr %222, i64 8
  %233 = load ptr, ptr %232, align 8
  %234 = load ptr, ptr %193, align 8
  %235 = icmp eq ptr %233, %234
  br i1 %235, label %264, label %236

236:
  %237 = load ptr, ptr %194, align 8
  %238 = icmp eq ptr %233, %237
  br i1 %238, label %239, label %362

239:
  %240 = load i64, ptr %195, align 8
  %241 = getelementptr i8, ptr %222, i64 %240
  %242 = load ptr, ptr %241, align 8
  %243 = icmp eq ptr %242, null
  br i1 %243, label %362, label %244

244:
  %245 = getelementptr inbounds i8, ptr %242, i64 8
  %246 = load ptr, ptr %245, align 8
  %247 = load ptr, ptr %196, align 8
  %248 = icmp eq ptr %246, %247
  br i1 %248, label %255, label %249

249:
  %250 = load ptr, ptr %197, align 8
  %251 = icmp eq ptr %250, %246
  br i1 %251, label %255, label %252

252:
  %253 = load ptr, ptr %198, align 8
  %254 = icmp eq ptr %253, %246
  br i1 %254, label %255, label %362

255:
  %256 = load i64, ptr %199, align 8
  %257 = getelementptr i8, ptr %242, i64 %256
  %258 = load ptr, ptr %257, align 8
  %259 = icmp eq ptr %258, null
  br i1 %259, label %362, label %260

260:
  %261 = getelementptr inbounds i8, ptr %258, i64 8
  %262 = load ptr, ptr %261, align 8
  %263 = icmp eq ptr %262, %234
  br i1 %263, label %264, label %362

264:
  %265 = phi ptr [ %222, %231 ], [ %258, %260 ], [ %222, %226 ]
  store ptr %265, ptr %223, align 8
  %266 = getelementptr inbounds i8, ptr %265, i64 56
  %267 = load ptr, ptr %266, align 8
  %268 = getelementptr inbounds i8, ptr %218, i64 8
  %269 = load ptr, ptr %268, align 8
  %270 = icmp eq ptr %267, %269
  br i1 %270, label %271, label %362

271:
  %272 = getelementptr inbounds i8, ptr %265, i64 24
  %273 = load i32, ptr %272, align 8
  %274 = sext i32 %273 to i64
  %275 = getelementptr inbounds i8, ptr %218, i64 24
  %276 = load i64, ptr %275, align 8
  %277 = icmp eq i64 %276, %274
  br i1 %277, label %278, label %362

278:
  %279 = getelementptr inbounds i8, ptr %265, i64 64
  %280 = load i32, ptr %279, align 8
  %281 = and i32 %280, 257
  %282 = zext nneg i32 %281 to i64
  %283 = getelementptr inbounds i8, ptr %218, i64 16
  %284 = load i64, ptr %283, align 8
  %285 = icmp eq i64 %284, %282
  br i1 %285, label %286, label %362

286:
  %287 = getelementptr inbounds i8, ptr %265, i64 32
  %288 = load ptr, ptr %287, align 8
  %289 = getelementptr inbounds i8, ptr %218, i64 32
  %290 = load ptr, ptr %289, align 8
  %291 = icmp slt i32 %273, 1
  br i1 %291, label %363, label %292

292:
  %293 = load i64, ptr %288, align 8
  %294 = load i64, ptr %290, align 8
  %295 = icmp eq i64 %293, %294
  br i1 %295, label %296, label %362

296:
  %297 = phi i64 [ %298, %300 ], [ 0, %292 ]
  %298 = add nuw nsw i64 %297, 1
  %299 = icmp eq i64 %298, %274
  br i1 %299, label %308, label %300

300:
  %301 = getelementptr i64, ptr %288, i64 %298
  %302 = load i64, ptr %301, align 8
  %303 = getelementptr i64, ptr %290, i64 %298
  %304 = load i64, ptr %303, align 8
  %305 = icmp eq i64 %302, %304
  br i1 %305, label %296, label %306

306:
  %307 = icmp slt i64 %298, %274
  br i1 %307, label %362, label %308

308:
  %309 = getelementptr inbounds i8, ptr %218, i64 40
  %310 = load ptr, ptr %309, align 8
  %311 = icmp eq ptr %310, null
  br i1 %311, label %363, label %312

312:
  %313 = getelementptr inbounds i8, ptr %265, i64 40
  %314 = load ptr, ptr %313, align 8
  %315 = load i64, ptr %314, align 8
  %316 = load i64, ptr %310, align 8
  %317 = icmp eq i64 %315, %316
  br i1 %317, label %318, label %362

318:
  %319 = phi i64 [ %320, %323 ], [ 0, %312 ]
  %320 = add nuw nsw i64 %319, 1
  %321 = icmp eq i64 %320, %274
  br i1 %321, label %322, label %323

322:
  call void @llvm.lifetime.end.p0(i64 4, ptr nonnull %6) #6
  br label %366

323:
  %324 = getelementptr i64, ptr %314, i64 %320
  %325 = load i64, ptr %324, align 8
  %326 = getelementptr i64, ptr %310, i64 %320
  %327 = load i64, ptr %326, align 8
  %328 = icmp eq i64 %325, %327
  br i1 %328, label %318, label %364

329:
  %330 = getelementptr inbounds i8, ptr %222, i64 8
  %331 = load ptr, ptr %330, align 8
  %332 = load ptr, ptr %191, align 8
  %333 = icmp eq ptr %331, %332
  br i1 %333, label %334, label %362

334:
  %335 = load ptr, ptr %192, align 8
  %336 = call double %335(ptr noundef nonnull %222) #4
  store double %336, ptr %224, align 8
  br label %363

337:
  %338 = getelementptr inbounds i8, ptr %222, i64 8
  %339 = load ptr, ptr %338, align 8
  %340 = load ptr, ptr %189, align 8
  %341 = icmp eq ptr %339, %340
  br i1 %341, label %342, label %362

342:
  %343 = load ptr, ptr %190, align 8
  %344 = call i64 %343(ptr noundef nonnull %222, ptr noundef nonnull %6) #4
  store i64 %344, ptr %224, align 8
  %345 = load i32, ptr %6, align 4
  %346 = icmp eq i32 %345, 0
  %347 = icmp ne i64 %344, -9223372036854775808
  %348 = select i1 %346, i1 %347, i1 false
  call void @llvm.lifetime.end.p0(i64 4, ptr nonnull %6) #6
  br i1 %348, label %366, label %634

349:
  %350 = getelementptr inbounds i8, ptr %222, i64 8
  %351 = load ptr, ptr %350, align 8
  %352 = getelementptr inbounds i8, ptr %218, i64 8
  %353 = load ptr, ptr %352, align 8
  %354 = icmp eq ptr %351, %353
  br i1 %354, label %355, label %362

355:
  %356 = getelementptr inbounds i8, ptr %222, i64 16
  %357 = load i64, ptr %356, align 8
  store i64 %357, ptr %224, align 8
  br label %363

358:
  %359 = getelementptr inbounds i8, ptr %218, i64 8
  %360 = load ptr, ptr %359, align 8
  %361 = icmp eq ptr %360, %222
  call void @llvm.lifetime.end.p0(i64 4, ptr nonnull %6) #6
  br i1 %361, label %366, label %634

362:
  call void @llvm.lifetime.end.p0(i64 4, ptr nonnull %6) #6
  br label %634

363:
  call void @llvm.lifetime.end.p0(i64 4, ptr nonnull %6) #6
  br label %366

364:
  %365 = icmp slt i64 %320, %274
  call void @llvm.lifetime.end.p0(i64 4, ptr nonnull %6) #6
  br i1 %365, label %634, label %366

366:
  %367 = add nuw nsw i64 %216, 1
  %368 = load i64, ptr %34, align 8
  %369 = icmp slt i64 %367, %368
  br i1 %369, label %215, label %200

370:
  %371 = phi i64 [ 0, %206 ], [ %462, %461 ]
  %372 = getelementptr %struct.captured, ptr %208, i64 %371
  %373 = load ptr, ptr %372, align 8
  %374 = getelementptr inbounds i8, ptr %373, i64 8
  %375 = load ptr, ptr %374, align 8
  %376 = icmp eq ptr %375, %210
  br i1 %376, label %389, label %377

377:
  %378 = load ptr, ptr %211, align 8
  %379 = icmp eq ptr %378, %375
  br i1 %379, label %383, label %380

380:
  %381 = load ptr, ptr %202, align 8
  %382 = icmp eq ptr %381, %375
  br i1 %382, label %383, label %634

383:
  %384 = load i64, ptr %212, align 8
  %385 = getelementptr i8, ptr %373, i64 %384
  %386 = load ptr, ptr %385, align 8
  %387 = load ptr, ptr %213, align 8
  %388 = icmp eq ptr %386, %387
  br i1 %388, label %389, label %634

389:
  %390 = load i64, ptr %214, align 8
  %391 = getelementptr i8, ptr %373, i64 %390
  %392 = load ptr, ptr %391, align 8
  %393 = getelementptr inbounds i8, ptr %372, i64 8
  %394 = load ptr, ptr %393, align 8
  %395 = icmp eq ptr %392, %394
  br i1 %395, label %396, label %634

396:
  %397 = getelementptr inbounds i8, ptr %394, i64 56
  %398 = load ptr, ptr %397, align 8
  %399 = getelementptr inbounds i8, ptr %372, i64 24
  %400 = load ptr, ptr %399, align 8
  %401 = icmp eq ptr %398, %400
  br i1 %401, label %402, label %634

402:
  %403 = getelementptr inbounds i8, ptr %394, i64 24
  %404 = load i32, ptr %403, align 8
  %405 = sext i32 %404 to i64
  %406 = getelementptr inbounds i8, ptr %372, i64 40
  %407 = load i64, ptr %406, align 8
  %408 = icmp eq i64 %407, %405
  br i1 %408, label %409, label %634

409:
  %410 = getelementptr inbounds i8, ptr %394, i64 64
  %411 = load i32, ptr %410, align 8
  %412 = and i32 %411, 257
  %413 = zext nneg i32 %412 to i64
  %414 = getelementptr inbounds i8, ptr %372, i64 32
  %415 = load i64, ptr %414, align 8
  %416 = icmp eq i64 %415, %413
  br i1 %416, label %417, label %634

417:
  %418 = getelementptr inbounds i8, ptr %394, i64 32
  %419 = load ptr, ptr %418, align 8
  %420 = getelementptr inbounds i8, ptr %372, i64 48
  %421 = load ptr, ptr %420, align 8
  %422 = icmp slt i32 %404, 1
  br i1 %422, label %461, label %423

423:
  %424 = load i64, ptr %419, align 8
  %425 = load i64, ptr %421, align 8
  %426 = icmp eq i64 %424, %425
  br i1 %426, label %427, label %634

427:
  %428 = phi i64 [ %429, %431 ], [ 0, %423 ]
  %429 = add nuw nsw i64 %428, 1
  %430 = icmp eq i64 %429, %405
  br i1 %430, label %439, label %431

431:
  %432 = getelementptr i64, ptr %419, i64 %429
  %433 = load i64, ptr %432, align 8
  %434 = getelementptr i64, ptr %421, i64 %429
  %435 = load i64, ptr %434, align 8
  %436 = icmp eq i64 %433, %435
  br i1 %436, label %427, label %437

437:
  %438 = icmp slt i64 %429, %405
  br i1 %438, label %634, label %439

439:
  %440 = getelementptr inbounds i8, ptr %372, i64 56
  %441 = load ptr, ptr %440, align 8
  %442 = icmp eq ptr %441, null
  br i1 %442, label %461, label %443

443:
  %444 = getelementptr inbounds i8, ptr %394, i64 40
  %445 = load ptr, ptr %444, align 8
  %446 = load i64, ptr %445, align 8
  %447 = load i64, ptr %441, align 8
  %448 = icmp eq i64 %446, %447
  br i1 %448, label %449, label %634

449:
  %450 = phi i64 [ %451, %453 ], [ 0, %443 ]
  %451 = add nuw nsw i64 %450, 1
  %452 = icmp eq i64 %451, %405
  br i1 %452, label %461, label %453

453:
  %454 = getelementptr i64, ptr %445, i64 %451
  %455 = load i64, ptr %454, align 8
  %456 = getelementptr i64, ptr %441, i64 %451
  %457 = load i64, ptr %456, align 8
  %458 = icmp eq i64 %455, %457
  br i1 %458, label %449, label %459

459:
  %460 = icmp slt i64 %451, %405
  br i1 %460, label %634, label %461

461:
  %462 = add nuw nsw i64 %371, 1
  %463 = icmp eq i64 %462, %204
  br i1 %463, label %464, label %370

464:
  %465 = getelementptr inbounds i8, ptr %1, i64 80
  %466 = load i64, ptr %465, align 8
  %467 = icmp eq i64 %466, 0
  br i1 %467, label %594, label %468

468:
  %469 = getelementptr inbounds i8, ptr %1, i64 88
  %470 = load i64, ptr %469, align 8
  %471 = sub i64 %201, %470
  %472 = icmp slt i64 %471, %201
  br i1 %472, label %473, label %556

473:
  %474 = getelementptr inbounds i8, ptr %1, i64 72
  %475 = load ptr, ptr %474, align 8
  %476 = getelementptr inbounds i8, ptr %1, i64 96
  %477 = icmp sgt i64 %204, 0
  br label %478

478:
  %479 = phi i1 [ false, %473 ], [ %552, %550 ]
  %480 = phi i64 [ %471, %473 ], [ %551, %550 ]
  %481 = getelementptr %struct.argument, ptr %475, i64 %480
  %482 = getelementptr ptr, ptr %32, i64 %480
  %483 = load ptr, ptr %482, align 8
  %484 = getelementptr inbounds i8, ptr %483, i64 16
  %485 = load ptr, ptr %484, align 8
  %486 = ptrtoint ptr %485 to i64
  %487 = getelementptr inbounds i8, ptr %481, i64 64
  %488 = load i64, ptr %487, align 8
  %489 = add i64 %488, %486
  %490 = getelementptr inbounds i8, ptr %483, i64 64
  %491 = load i32, ptr %490, align 8
  %492 = and i32 %491, 1024
  %493 = icmp eq i32 %492, 0
  br i1 %493, label %554, label %494

494:
  %495 = icmp sgt i64 %480, 0
  br i1 %495, label %496, label %498

496:
  %497 = getelementptr inbounds i8, ptr %481, i64 72
  br label %501

498:
  br i1 %477, label %499, label %550

499:
  %500 = load ptr, ptr %476, align 8
  br label %530

501:
  %502 = phi i64 [ 0, %496 ], [ %528, %527 ]
  %503 = getelementptr ptr, ptr %32, i64 %502
  %504 = load ptr, ptr %503, align 8
  %505 = icmp eq ptr %504, null
  br i1 %505, label %527, label %506

506:
  %507 = load i64, ptr %497, align 8
  %508 = icmp eq i64 %502, %507
  br i1 %508, label %509, label %513

509:
  %510 = getelementptr inbounds i8, ptr %504, i64 16
  %511 = load ptr, ptr %510, align 8
  %512 = icmp eq ptr %511, %485
  br i1 %512, label %527, label %554

513:
  %514 = getelementptr %struct.argument, ptr %475, i64 %502
  %515 = getelementptr inbounds i8, ptr %504, i64 16
  %516 = load ptr, ptr %515, align 8
  %517 = ptrtoint ptr %516 to i64
  %518 = getelementptr inbounds i8, ptr %514, i64 64
  %519 = load i64, ptr %518, align 8
  %520 = add i64 %519, %517
  %521 = icmp ugt i64 %520, %486
  br i1 %521, label %522, label %527

522:
  %523 = getelementptr inbounds i8, ptr %514, i64 56
  %524 = load i64, ptr %523, align 8
  %525 = add i64 %524, %517
  %526 = icmp ult i64 %525, %489
  br i1 %526, label %554, label %527

527:
  %528 = add nuw nsw i64 %502, 1
  %529 = icmp slt i64 %528, %480
  br i1 %529, label %501, label %498

530:
  %531 = phi i64 [ 0, %499 ], [ %548, %547 ]
  %532 = getelementptr %struct.captured, ptr %500, i64 %531
  %533 = getelementptr inbounds i8, ptr %532, i64 8
  %534 = load ptr, ptr %533, align 8
  %535 = getelementptr inbounds i8, ptr %534, i64 16
  %536 = load ptr, ptr %535, align 8
  %537 = ptrtoint ptr %536 to i64
  %538 = getelementptr inbounds i8, ptr %532, i64 80
  %539 = load i64, ptr %538, align 8
  %540 = add i64 %539, %537
  %541 = icmp ugt i64 %540, %486
  br i1 %541, label %542, label %547

542:
  %543 = getelementptr inbounds i8, ptr %532, i64 72
  %544 = load i64, ptr %543, align 8
  %545 = add i64 %544, %537
  %546 = icmp ult i64 %545, %489
  br i1 %546, label %554, label %547

547:
  %548 = add nuw nsw i64 %531, 1
  %549 = icmp eq i64 %548, %204
  br i1 %549, label %550, label %530

550:
  %551 = add nsw i64 %480, 1
  %552 = icmp sge i64 %551, %201
  %553 = icmp eq i64 %551, %201
  br i1 %553, label %554, label %478

554:
  %555 = phi i1 [ %479, %542 ], [ %479, %522 ], [ %479, %509 ], [ %479, %478 ], [ %552, %550 ]
  br i1 %555, label %556, label %634

556:
  %557 = getelementptr inbounds i8, ptr %0, i64 296
  %558 = load ptr, ptr %557, align 8
  %559 = load ptr, ptr %0, align 8
  %560 = getelementptr inbounds i8, ptr %0, i64 16
  %561 = load ptr, ptr %560, align 8
  %562 = call ptr %558(ptr noundef %559, ptr noundef %561) #4
  %563 = icmp eq ptr %562, null
  br i1 %563, label %591, label %564

564:
  %565 = getelementptr inbounds i8, ptr %0, i64 360
  %566 = load ptr, ptr %565, align 8
  %567 = call i64 %566(ptr noundef nonnull %562) #4
  %568 = getelementptr inbounds i8, ptr %0, i64 280
  %569 = load ptr, ptr %568, align 8
  call void %569(ptr noundef nonnull %562) #4
  %570 = icmp eq i64 %567, 0
  br i1 %570, label %571, label %591

571:
  %572 = load ptr, ptr %557, align 8
  %573 = load ptr, ptr %0, align 8
  %574 = getelementptr inbounds i8, ptr %0, i64 24
  %575 = load ptr, ptr %574, align 8
  %576 = call ptr %572(ptr noundef %573, ptr noundef %575) #4
  %577 = icmp eq ptr %576, null
  br i1 %577, label %591, label %578

578:
  %579 = load ptr, ptr %557, align 8
  %580 = getelementptr inbounds i8, ptr %0, i64 32
  %581 = load ptr, ptr %580, align 8
  %582 = call ptr %579(ptr noundef nonnull %576, ptr noundef %581) #4
  %583 = load ptr, ptr %568, align 8
  call void %583(ptr noundef nonnull %576) #4
  %584 = icmp eq ptr %582, null
  br i1 %584, label %591, label %585

585:
  %586 = getelementptr inbounds i8, ptr %0, i64 376
  %587 = load ptr, ptr %586, align 8
  %588 = call i64 %587(ptr noundef nonnull %582) #4
  %589 = load ptr, ptr %568, align 8
  call void %589(ptr noundef nonnull %582) #4
  %590 = icmp eq i64 %588, 0
  br i1 %590, label %594, label %591

591:
  %592 = getelementptr inbounds i8, ptr %0, i64 536
  %593 = load ptr, ptr %592, align 8
  call void %593() #4
  br label %634

594:
  %595 = load ptr, ptr %1, align 8
  %596 = getelementptr inbounds i8, ptr %0, i64 272
  %597 = load ptr, ptr %596, align 8
  call void %597(ptr noundef %595) #4
  %598 = icmp sgt i64 %35, 0
  br i1 %598, label %602, label %599

599:
  %600 = load i64, ptr %465, align 8
  %601 = icmp eq i64 %600, 0
  br i1 %601, label %616, label %612

602:
  %603 = phi i64 [ %610, %609 ], [ 0, %594 ]
  %604 = getelementptr ptr, ptr %32, i64 %603
  %605 = load ptr, ptr %604, align 8
  %606 = icmp eq ptr %605, null
  br i1 %606, label %609, label %607

607:
  %608 = load ptr, ptr %596, align 8
  call void %608(ptr noundef nonnull %605) #4
  br label %609

609:
  %610 = add nuw nsw i64 %603, 1
  %611 = icmp eq i64 %610, %35
  br i1 %611, label %599, label %602

612:
  %613 = getelementptr ptr, ptr %2, i64 %600
  %614 = getelementptr i8, ptr %613, i64 -8
  %615 = load ptr, ptr %614, align 8
  br label %616

616:
  %617 = phi ptr [ %615, %612 ], [ null, %599 ]
  %618 = call fastcc ptr @answer(ptr noundef %0, ptr noundef nonnull %1, ptr noundef nonnull %32, i1 noundef zeroext false, ptr noundef %617) #5
  store ptr %618, ptr %4, align 8
  br i1 %598, label %619, label %621

619:
  %620 = getelementptr inbounds i8, ptr %0, i64 280
  br label %624

621:
  %622 = getelementptr inbounds i8, ptr %0, i64 280
  %623 = load ptr, ptr %622, align 8
  call void %623(ptr noundef %595) #4
  br label %634

624:
  %625 = phi i64 [ 0, %619 ], [ %632, %631 ]
  %626 = getelementptr ptr, ptr %32, i64 %625
  %627 = load ptr, ptr %626, align 8
  %628 = icmp eq ptr %627, null
  br i1 %628, label %631, label %629

629:
  %630 = load ptr, ptr %620, align 8
  call void %630(ptr noundef nonnull %627) #4
  br label %631

631:
  %632 = add nuw nsw i64 %625, 1
  %633 = icmp eq i64 %632, %35
  br i1 %633, label %621, label %624

634:
  %635 = phi i1 [ true, %621 ], [ false, %554 ], [ false, %591 ], [ false, %362 ], [ false, %166 ], [ false, %459 ], [ false, %383 ], [ false, %380 ], [ false, %389 ], [ false, %437 ], [ false, %409 ], [ false, %402 ], [ false, %396 ], [ false, %443 ], [ false, %423 ], [ false, %364 ], [ false, %358 ], [ false, %342 ], [ false, %94 ], [ false, %116 ], [ false, %65 ], [ false, %121 ], [ false, %99 ], [ false, %77 ], [ false, %163 ], [ false, %82 ], [ false, %104 ]
  %636 = icmp eq ptr %33, null
  br i1 %636, label %640, label %637

637:
  %638 = getelementptr inbounds i8, ptr %0, i64 520
  %639 = load ptr, ptr %638, align 8
  call void %639(ptr noundef nonnull %33) #4
  br label %640

640:
  %641 = phi i1 [ true, %27 ], [ %635, %637 ], [ %635, %634 ]
  ret i1 %641
}

define ptr @smelt_at(ptr nocapture noundef readnone %0, ptr nocapture noundef readonly %1, i64 noundef %2) local_unnamed_addr #1 {
  %4 = alloca ptr, align 8
  %5 = alloca i32, align 4
  %6 = alloca i32, align 4
  %7 = load ptr, ptr @the_state, align 8
  call void @llvm.lifetime.start.p0(i64 4, ptr nonnull %6) #6
  %8 = getelementptr inbounds i8, ptr %7, i64 496
  %9 = load ptr, ptr %8, align 8
  %10 = load ptr, ptr %1, align 8
  %11 = call i64 %9(ptr noundef %10, ptr noundef nonnull %6) #4
  %12 = inttoptr i64 %11 to ptr
  %13 = getelementptr inbounds i8, ptr %12, i64 8
  %14 = load i64, ptr %13, align 8
  %15 = getelementptr inbounds i8, ptr %7, i64 440
  %16 = load ptr, ptr %15, align 8
  %17 = getelementptr i8, ptr %1, i64 8
  %18 = load ptr, ptr %17, align 8
  %19 = call i64 %16(ptr noundef %18) #4
  %20 = icmp eq i64 %19, %14
  br i1 %20, label %21, label %117

21:
  %22 = getelementptr inbounds i8, ptr %12, i64 144
  %23 = load i64, ptr %22, align 8
  %24 = icmp slt i64 %23, 4097
  br i1 %24, label %25, label %27

25:
  %26 = alloca i8, i64 %23, align 64
  br label %43

27:
  %28 = getelementptr inbounds i8, ptr %7, i64 512
  %29 = load ptr, ptr %28, align 8
  %30 = add nuw i64 %23, 64
  %31 = call ptr %29(i64 noundef %30) #4
  %32 = icmp eq ptr %31, null
  %33 = ptrtoint ptr %31 to i64
  %34 = add i64 %33, 63
  %35 = and i64 %34, -64
  %36 = inttoptr i64 %35 to ptr
  %37 = icmp eq i64 %35, 0
  %38 = or i1 %32, %37
  br i1 %38, label %39, label %43

39:
  %40 = getelementptr inbounds i8, ptr %7, i64 528
  %41 = load ptr, ptr %40, align 8
  %42 = call ptr %41() #4
  br label %117

43:
  %44 = phi ptr [ %26, %25 ], [ %36, %27 ]
  %45 = phi ptr [ null, %25 ], [ %31, %27 ]
  %46 = getelementptr ptr, ptr %44, i64 %14
  %47 = icmp sgt i64 %14, 0
  br i1 %47, label %48, label %104

48:
  %49 = getelementptr inbounds i8, ptr %7, i64 448
  %50 = getelementptr inbounds i8, ptr %7, i64 64
  %51 = getelementptr inbounds i8, ptr %7, i64 112
  %52 = getelementptr inbounds i8, ptr %7, i64 456
  %53 = getelementptr inbounds i8, ptr %7, i64 264
  %54 = getelementptr inbounds i8, ptr %7, i64 280
  br label %56

55:
  br i1 %100, label %104, label %111

56:
  %57 = phi i64 [ 0, %48 ], [ %101, %99 ]
  %58 = load ptr, ptr %49, align 8
  %59 = load ptr, ptr %17, align 8
  %60 = call ptr %58(ptr noundef %59, i64 noundef %57) #4
  %61 = getelementptr ptr, ptr %44, i64 %57
  store ptr null, ptr %61, align 8
  %62 = icmp eq ptr %60, null
  br i1 %62, label %111, label %63

63:
  %64 = getelementptr i64, ptr %46, i64 %57
  call void @llvm.lifetime.start.p0(i64 8, ptr nonnull %4)
  store ptr %60, ptr %4, align 8
  call void @llvm.lifetime.start.p0(i64 4, ptr nonnull %5) #6
  %65 = getelementptr inbounds i8, ptr %60, i64 8
  %66 = load ptr, ptr %65, align 8
  %67 = load ptr, ptr %50, align 8
  %68 = icmp eq ptr %66, %67
  br i1 %68, label %69, label %74

69:
  %70 = getelementptr inbounds i8, ptr %60, i64 16
  %71 = load ptr, ptr %70, align 8
  %72 = ptrtoint ptr %71 to i64
  store i64 %72, ptr %64, align 8
  %73 = load ptr, ptr %54, align 8
  call void %73(ptr noundef nonnull %60) #4
  br label %99

74:
  %75 = load ptr, ptr %51, align 8
  %76 = icmp eq ptr %66, %75
  br i1 %76, label %90, label %77

77:
  %78 = load ptr, ptr %52, align 8
  %79 = load ptr, ptr %53, align 8
  %80 = call ptr %78(ptr noundef %79, ptr noundef nonnull %4, i64 noundef 1, ptr noundef null) #4
  %81 = load ptr, ptr %54, align 8
  %82 = load ptr, ptr %4, align 8
  call void %81(ptr noundef %82) #4
  %83 = icmp eq ptr %80, null
  br i1 %83, label %84, label %85

84:
  call void @llvm.lifetime.end.p0(i64 4, ptr nonnull %5) #6
  call void @llvm.lifetime.end.p0(i64 8, ptr nonnull %4)
  br label %111

85:
  store ptr %80, ptr %4, align 8
  %86 = getelementptr inbounds i8, ptr %80, i64 8
  %87 = load ptr, ptr %86, align 8
  %88 = load ptr, ptr %51, align 8
  %89 = icmp eq ptr %87, %88
  br i1 %89, label %90, label %95

90:
  %91 = phi ptr [ %80, %85 ], [ %60, %74 ]
  %92 = load ptr, ptr %8, align 8
  %93 = call i64 %92(ptr noundef nonnull %91, ptr noundef nonnull %5) #4
  store i64 %93, ptr %64, align 8
  %94 = load ptr, ptr %4, align 8
  br label %95

95:
  %96 = phi i1 [ true, %90 ], [ false, %85 ]
  %97 = phi ptr [ %94, %90 ], [ %80, %85 ]
  %98 = load ptr, ptr %54, align 8
  call void %98(ptr noundef %97) #4
  br label %99

99:
  %100 = phi i1 [ true, %69 ], [ %96, %95 ]
  call void @llvm.lifetime.end.p0(i64 4, ptr nonnull %5) #6
  call void @llvm.lifetime.end.p0(i64 8, ptr nonnull %4)
  %101 = add nuw nsw i64 %57, 1
  %102 = icmp slt i64 %101, %14
  %103 = and i1 %100, %102
  br i1 %103, label %56, label %55

104:
  %105 = load ptr, ptr %12, align 8
  %106 = getelementptr inbounds i8, ptr %7, i64 272
  %107 = load ptr, ptr %106, align 8
  call void %107(ptr noundef %105) #4
  %108 = call fastcc ptr @answer(ptr noundef nonnull %7, ptr noundef nonnull %12, ptr noundef nonnull %44, i1 noundef zeroext true, ptr noundef null) #5
  %109 = getelementptr inbounds i8, ptr %7, i64 280
  %110 = load ptr, ptr %109, align 8
  call void %110(ptr noundef %105) #4
  br label %111

111:
  %112 = phi ptr [ %108, %104 ], [ null, %55 ], [ null, %84 ], [ null, %56 ]
  %113 = icmp eq ptr %45, null
  br i1 %113, label %117, label %114

114:
  %115 = getelementptr inbounds i8, ptr %7, i64 520
  %116 = load ptr, ptr %115, align 8
  call void %116(ptr noundef nonnull %45) #4
  br label %117

117:
  %118 = phi ptr [ null, %3 ], [ %42, %39 ], [ %112, %114 ], [ %112, %111 ]
  call void @llvm.lifetime.end.p0(i64 4, ptr nonnull %6) #6
  ret ptr %118
}

define internal fastcc ptr @answer(ptr nocapture noundef readonly %0, ptr nocapture noundef readonly %1, ptr noundef %2, i1 noundef zeroext %3, ptr noundef %4) unnamed_addr #1 {
  %6 = alloca [64 x i8], align 64
  %7 = getelementptr inbounds i8, ptr %1, i64 8
  %8 = load i64, ptr %7, align 8
  %9 = getelementptr ptr, ptr %2, i64 %8
  %10 = getelementptr i64, ptr %9, i64 %8
  %11 = getelementptr i64, ptr %10, i64 %8
  %12 = getelementptr inbounds i8, ptr %1, i64 104
  %13 = load i64, ptr %12, align 8
  %14 = getelementptr i64, ptr %11, i64 %13
  call void @llvm.lifetime.start.p0(i64 64, ptr nonnull %6) #6
  store i8 0, ptr %6, align 64
  %15 = ptrtoint ptr %6 to i64
  %16 = getelementptr inbounds i8, ptr %1, i64 120
  %17 = load i64, ptr %16, align 8
  %18 = getelementptr i64, ptr %14, i64 %17
  store i64 %15, ptr %18, align 8
  %19 = icmp eq ptr %4, null
  br i1 %19, label %23, label %20

20:
  %21 = getelementptr inbounds i8, ptr %0, i64 272
  %22 = load ptr, ptr %21, align 8
  call void %22(ptr noundef nonnull %4) #4
  br label %36

23:
  %24 = getelementptr inbounds i8, ptr %1, i64 272
  %25 = load i64, ptr %24, align 8
  %26 = icmp eq i64 %25, 0
  br i1 %26, label %27, label %36

27:
  %28 = getelementptr inbounds i8, ptr %0, i64 328
  %29 = load ptr, ptr %28, align 8
  %30 = load i64, ptr %16, align 8
  %31 = getelementptr inbounds i8, ptr %1, i64 136
  %32 = load i64, ptr %31, align 8
  %33 = add i64 %32, %30
  %34 = call ptr %29(i64 noundef %33) #4
  %35 = icmp eq ptr %34, null
  br i1 %35, label %428, label %36

36:
  %37 = phi ptr [ %4, %20 ], [ null, %23 ], [ %34, %27 ]
  %38 = load i64, ptr %16, align 8
  %39 = icmp sgt i64 %38, 0
  br i1 %39, label %40, label %80

40:
  %41 = getelementptr inbounds i8, ptr %1, i64 112
  %42 = getelementptr inbounds i8, ptr %1, i64 264
  %43 = getelementptr inbounds i8, ptr %0, i64 320
  %44 = getelementptr inbounds i8, ptr %0, i64 280
  %45 = getelementptr inbounds i8, ptr %1, i64 272
  %46 = getelementptr inbounds i8, ptr %0, i64 336
  br label %47

47:
  %48 = phi ptr [ %37, %40 ], [ %76, %75 ]
  %49 = phi i64 [ 0, %40 ], [ %77, %75 ]
  %50 = load ptr, ptr %41, align 8
  %51 = getelementptr %struct.result, ptr %50, i64 %49
  %52 = getelementptr i64, ptr %14, i64 %49
  %53 = load ptr, ptr %42, align 8
  %54 = icmp eq ptr %53, null
  br i1 %54, label %55, label %57

55:
  %56 = call ptr @smelt_result(ptr noundef readonly %51, ptr noundef %52) #5
  br label %65

57:
  %58 = call ptr @smelt_array(ptr noundef readonly %51, ptr noundef %52) #5
  %59 = icmp eq ptr %58, null
  br i1 %59, label %422, label %60

60:
  %61 = load ptr, ptr %43, align 8
  %62 = load ptr, ptr %42, align 8
  %63 = call ptr %61(ptr noundef %62, ptr noundef nonnull %58) #4
  %64 = load ptr, ptr %44, align 8
  call void %64(ptr noundef nonnull %58) #4
  br label %65

65:
  %66 = phi ptr [ %56, %55 ], [ %63, %60 ]
  %67 = icmp eq ptr %66, null
  br i1 %67, label %422, label %68

68:
  %69 = load i64, ptr %45, align 8
  %70 = icmp eq i64 %69, 0
  br i1 %70, label %71, label %75

71:
  %72 = load ptr, ptr %46, align 8
  %73 = call i32 %72(ptr noundef %48, i64 noundef %49, ptr noundef nonnull %66) #4
  %74 = icmp sgt i32 %73, -1
  br i1 %74, label %75, label %422

75:
  %76 = phi ptr [ %48, %71 ], [ %66, %68 ]
  %77 = add nuw nsw i64 %49, 1
  %78 = load i64, ptr %16, align 8
  %79 = icmp slt i64 %77, %78
  br i1 %79, label %47, label %80

80:
  %81 = phi ptr [ %37, %36 ], [ %76, %75 ]
  %82 = getelementptr inbounds i8, ptr %1, i64 192
  %83 = load ptr, ptr %82, align 8
  %84 = icmp eq ptr %83, null
  br i1 %84, label %143, label %85

85:
  %86 = getelementptr inbounds i8, ptr %83, i64 32
  %87 = load ptr, ptr %86, align 8
  %88 = icmp eq ptr %87, null
  br i1 %88, label %106, label %89

89:
  %90 = getelementptr inbounds i8, ptr %87, i64 8
  br label %94

91:
  %92 = add nuw nsw i64 %95, 1
  %93 = icmp eq i64 %92, 8
  br i1 %93, label %106, label %94

94:
  %95 = phi i64 [ 0, %89 ], [ %92, %91 ]
  %96 = getelementptr [8 x %struct.ring_entry], ptr %90, i64 0, i64 %95
  %97 = load ptr, ptr %96, align 8
  %98 = icmp eq ptr %97, null
  br i1 %98, label %106, label %99

99:
  %100 = load i32, ptr %97, align 8
  %101 = icmp eq i32 %100, 1
  br i1 %101, label %102, label %91

102:
  %103 = getelementptr inbounds i8, ptr %96, i64 8
  %104 = load i64, ptr %103, align 8
  %105 = getelementptr inbounds i8, ptr %0, i64 272
  br label %133

106:
  %107 = getelementptr inbounds i8, ptr %0, i64 312
  %108 = load ptr, ptr %107, align 8
  %109 = getelementptr inbounds i8, ptr %83, i64 40
  %110 = load ptr, ptr %109, align 8
  %111 = call ptr %108(ptr noundef %110) #4
  %112 = icmp eq ptr %111, null
  br i1 %112, label %422, label %113

113:
  %114 = getelementptr inbounds i8, ptr %111, i64 48
  %115 = load ptr, ptr %114, align 8
  %116 = getelementptr inbounds i8, ptr %111, i64 16
  %117 = load ptr, ptr %116, align 8
  %118 = ptrtoint ptr %117 to i64
  %119 = getelementptr inbounds i8, ptr %0, i64 272
  %120 = load ptr, ptr %119, align 8
  call void %120(ptr noundef %115) #4
  %121 = getelementptr inbounds i8, ptr %0, i64 280
  %122 = load ptr, ptr %121, align 8
  call void %122(ptr noundef nonnull %111) #4
  br i1 %88, label %139, label %123

123:
  %124 = getelementptr inbounds i8, ptr %87, i64 8
  %125 = load i64, ptr %87, align 8
  %126 = getelementptr [8 x %struct.ring_entry], ptr %124, i64 0, i64 %125
  %127 = load ptr, ptr %126, align 8
  %128 = add i64 %125, 1
  %129 = srem i64 %128, 8
  store i64 %129, ptr %87, align 8
  %130 = load ptr, ptr %119, align 8
  call void %130(ptr noundef %115) #4
  store ptr %115, ptr %126, align 8
  %131 = getelementptr inbounds i8, ptr %126, i64 8
  store i64 %118, ptr %131, align 8
  %132 = icmp eq ptr %127, null
  br i1 %132, label %139, label %133

133:
  %134 = phi i64 [ %118, %123 ], [ %104, %102 ]
  %135 = phi ptr [ %121, %123 ], [ %105, %102 ]
  %136 = phi ptr [ %127, %123 ], [ %97, %102 ]
  %137 = phi ptr [ %115, %123 ], [ %97, %102 ]
  %138 = load ptr, ptr %135, align 8
  call void %138(ptr noundef nonnull %136) #4
  br label %139

139:
  %140 = phi i64 [ %118, %113 ], [ %118, %123 ], [ %134, %133 ]
  %141 = phi ptr [ %115, %113 ], [ %115, %123 ], [ %137, %133 ]
  %142 = icmp eq ptr %141, null
  br i1 %142, label %422, label %143

143:
  %144 = phi i64 [ 0, %80 ], [ %140, %139 ]
  %145 = phi ptr [ null, %80 ], [ %141, %139 ]
  %146 = load i64, ptr %7, align 8
  %147 = icmp sgt i64 %146, 0
  br i1 %147, label %153, label %148

148:
  %149 = load i64, ptr %12, align 8
  %150 = icmp sgt i64 %149, 0
  br i1 %150, label %151, label %188

151:
  %152 = getelementptr inbounds i8, ptr %1, i64 96
  br label %174

153:
  %154 = phi i64 [ %171, %168 ], [ 0, %143 ]
  %155 = getelementptr ptr, ptr %2, i64 %154
  %156 = load ptr, ptr %155, align 8
  %157 = icmp eq ptr %156, null
  br i1 %157, label %162, label %158

158:
  %159 = getelementptr inbounds i8, ptr %156, i64 16
  %160 = load ptr, ptr %159, align 8
  %161 = ptrtoint ptr %160 to i64
  br label %168

162:
  %163 = getelementptr i64, ptr %9, i64 %154
  br i1 %3, label %164, label %166

164:
  %165 = load i64, ptr %163, align 8
  br label %168

166:
  %167 = ptrtoint ptr %163 to i64
  br label %168

168:
  %169 = phi i64 [ %161, %158 ], [ %165, %164 ], [ %167, %166 ]
  %170 = getelementptr i64, ptr %10, i64 %154
  store i64 %169, ptr %170, align 8
  %171 = add nuw nsw i64 %154, 1
  %172 = load i64, ptr %7, align 8
  %173 = icmp slt i64 %171, %172
  br i1 %173, label %153, label %148

174:
  %175 = phi i64 [ 0, %151 ], [ %185, %174 ]
  %176 = load ptr, ptr %152, align 8
  %177 = getelementptr %struct.captured, ptr %176, i64 %175, i32 1
  %178 = load ptr, ptr %177, align 8
  %179 = getelementptr inbounds i8, ptr %178, i64 16
  %180 = load ptr, ptr %179, align 8
  %181 = ptrtoint ptr %180 to i64
  %182 = load i64, ptr %7, align 8
  %183 = getelementptr i64, ptr %10, i64 %182
  %184 = getelementptr i64, ptr %183, i64 %175
  store i64 %181, ptr %184, align 8
  %185 = add nuw nsw i64 %175, 1
  %186 = load i64, ptr %12, align 8
  %187 = icmp slt i64 %185, %186
  br i1 %187, label %174, label %188

188:
  %189 = getelementptr inbounds i8, ptr %1, i64 152
  %190 = load i64, ptr %189, align 8
  %191 = getelementptr i8, ptr %2, i64 %190
  %192 = getelementptr inbounds i8, ptr %1, i64 168
  %193 = load i64, ptr %192, align 8
  %194 = icmp sgt i64 %193, 0
  br i1 %194, label %195, label %197

195:
  %196 = getelementptr inbounds i8, ptr %1, i64 160
  br label %203

197:
  %198 = getelementptr inbounds i8, ptr %1, i64 184
  %199 = load i64, ptr %198, align 8
  %200 = icmp sgt i64 %199, 0
  br i1 %200, label %201, label %212

201:
  %202 = getelementptr inbounds i8, ptr %1, i64 176
  br label %218

203:
  %204 = phi i64 [ 0, %195 ], [ %209, %203 ]
  %205 = load ptr, ptr %196, align 8
  %206 = getelementptr i64, ptr %205, i64 %204
  %207 = load i64, ptr %206, align 8
  %208 = getelementptr i64, ptr %191, i64 %204
  store i64 %207, ptr %208, align 8
  %209 = add nuw nsw i64 %204, 1
  %210 = load i64, ptr %192, align 8
  %211 = icmp slt i64 %209, %210
  br i1 %211, label %203, label %197

212:
  %213 = getelementptr inbounds i8, ptr %1, i64 208
  %214 = load i64, ptr %213, align 8
  %215 = icmp sgt i64 %214, 0
  br i1 %215, label %216, label %234

216:
  %217 = getelementptr inbounds i8, ptr %1, i64 200
  br label %238

218:
  %219 = phi i64 [ 0, %201 ], [ %231, %218 ]
  %220 = load ptr, ptr %202, align 8
  %221 = getelementptr %struct.patch, ptr %220, i64 %219
  %222 = getelementptr inbounds i8, ptr %221, i64 8
  %223 = load i64, ptr %222, align 8
  %224 = getelementptr i64, ptr %10, i64 %223
  %225 = load i64, ptr %224, align 8
  %226 = getelementptr inbounds i8, ptr %221, i64 16
  %227 = load i64, ptr %226, align 8
  %228 = add i64 %227, %225
  %229 = load i64, ptr %221, align 8
  %230 = getelementptr i64, ptr %191, i64 %229
  store i64 %228, ptr %230, align 8
  %231 = add nuw nsw i64 %219, 1
  %232 = load i64, ptr %198, align 8
  %233 = icmp slt i64 %231, %232
  br i1 %233, label %218, label %212

234:
  %235 = getelementptr inbounds i8, ptr %1, i64 248
  %236 = load ptr, ptr %235, align 8
  %237 = icmp eq ptr %236, null
  br i1 %237, label %265, label %250

238:
  %239 = phi i64 [ 0, %216 ], [ %247, %238 ]
  %240 = load ptr, ptr %217, align 8
  %241 = getelementptr %struct.arena_patch, ptr %240, i64 %239
  %242 = getelementptr inbounds i8, ptr %241, i64 8
  %243 = load i64, ptr %242, align 8
  %244 = add i64 %243, %144
  %245 = load i64, ptr %241, align 8
  %246 = getelementptr i64, ptr %191, i64 %245
  store i64 %244, ptr %246, align 8
  %247 = add nuw nsw i64 %239, 1
  %248 = load i64, ptr %213, align 8
  %249 = icmp slt i64 %247, %248
  br i1 %249, label %238, label %234

250:
  %251 = getelementptr inbounds i8, ptr %0, i64 504
  %252 = load ptr, ptr %251, align 8
  %253 = ptrtoint ptr %191 to i64
  %254 = call ptr %252(i64 noundef %253) #4
  %255 = icmp eq ptr %254, null
  br i1 %255, label %303, label %256

256:
  %257 = getelementptr inbounds i8, ptr %0, i64 320
  %258 = load ptr, ptr %257, align 8
  %259 = call ptr %258(ptr noundef nonnull %236, ptr noundef nonnull %254) #4
  %260 = getelementptr inbounds i8, ptr %0, i64 280
  %261 = load ptr, ptr %260, align 8
  call void %261(ptr noundef nonnull %254) #4
  %262 = icmp eq ptr %259, null
  br i1 %262, label %303, label %263

263:
  %264 = load ptr, ptr %260, align 8
  call void %264(ptr noundef nonnull %259) #4
  br label %303

265:
  %266 = getelementptr inbounds i8, ptr %1, i64 216
  %267 = load ptr, ptr %266, align 8
  %268 = getelementptr inbounds i8, ptr %1, i64 224
  %269 = load i64, ptr %268, align 8
  %270 = getelementptr inbounds i8, ptr %1, i64 232
  %271 = load i64, ptr %270, align 8
  %272 = getelementptr inbounds i8, ptr %1, i64 240
  %273 = load i64, ptr %272, align 8
  %274 = icmp eq i64 %273, 0
  br i1 %274, label %280, label %275

275:
  %276 = add i64 %271, %144
  %277 = getelementptr inbounds i8, ptr %0, i64 544
  %278 = load ptr, ptr %277, align 8
  %279 = call ptr %278() #4
  br label %280

280:
  %281 = phi i64 [ %276, %275 ], [ %271, %265 ]
  %282 = phi ptr [ %279, %275 ], [ null, %265 ]
  %283 = icmp sgt i64 %269, 0
  br i1 %283, label %284, label %286

284:
  %285 = inttoptr i64 %281 to ptr
  br label %287

286:
  br i1 %274, label %303, label %300

287:
  %288 = phi i64 [ 0, %284 ], [ %298, %287 ]
  %289 = getelementptr %struct.chunk, ptr %267, i64 %288
  %290 = load ptr, ptr %289, align 8
  %291 = getelementptr inbounds i8, ptr %289, i64 8
  %292 = load i64, ptr %291, align 8
  %293 = getelementptr i8, ptr %191, i64 %292
  %294 = getelementptr inbounds i8, ptr %289, i64 16
  %295 = load i64, ptr %294, align 8
  %296 = getelementptr inbounds i8, ptr %289, i64 24
  %297 = load i64, ptr %296, align 8
  call void %290(ptr noundef %293, i64 noundef %295, i64 noundef %297, ptr noundef %285) #4
  %298 = add nuw nsw i64 %288, 1
  %299 = icmp eq i64 %298, %269
  br i1 %299, label %286, label %287

300:
  %301 = getelementptr inbounds i8, ptr %0, i64 552
  %302 = load ptr, ptr %301, align 8
  call void %302(ptr noundef %282) #4
  br label %303

303:
  %304 = phi i1 [ true, %300 ], [ true, %286 ], [ false, %250 ], [ false, %256 ], [ true, %263 ]
  %305 = icmp eq ptr %145, null
  br i1 %305, label %309, label %306

306:
  %307 = getelementptr inbounds i8, ptr %0, i64 280
  %308 = load ptr, ptr %307, align 8
  call void %308(ptr noundef nonnull %145) #4
  br label %309

309:
  br i1 %304, label %310, label %422

310:
  %311 = load i8, ptr %6, align 64
  %312 = icmp eq i8 %311, 0
  br i1 %312, label %319, label %313

313:
  %314 = getelementptr inbounds i8, ptr %0, i64 312
  %315 = load ptr, ptr %314, align 8
  %316 = getelementptr inbounds i8, ptr %1, i64 280
  %317 = load ptr, ptr %316, align 8
  %318 = call ptr %315(ptr noundef %317) #4
  br label %422

319:
  %320 = getelementptr inbounds i8, ptr %1, i64 136
  %321 = load i64, ptr %320, align 8
  %322 = icmp eq i64 %321, 0
  br i1 %322, label %410, label %323

323:
  %324 = icmp sgt i64 %321, 0
  br i1 %324, label %325, label %406

325:
  %326 = getelementptr inbounds i8, ptr %1, i64 128
  %327 = getelementptr inbounds i8, ptr %0, i64 328
  %328 = getelementptr inbounds i8, ptr %0, i64 392
  %329 = getelementptr inbounds i8, ptr %0, i64 408
  %330 = getelementptr inbounds i8, ptr %0, i64 336
  %331 = getelementptr inbounds i8, ptr %0, i64 352
  %332 = getelementptr inbounds i8, ptr %0, i64 256
  %333 = getelementptr inbounds i8, ptr %0, i64 272
  %334 = getelementptr inbounds i8, ptr %0, i64 400
  %335 = getelementptr inbounds i8, ptr %0, i64 416
  br label %336

336:
  %337 = phi i64 [ 0, %325 ], [ %403, %402 ]
  %338 = load ptr, ptr %326, align 8
  %339 = getelementptr %struct.result_nest, ptr %338, i64 %337
  %340 = load i64, ptr %339, align 8
  %341 = icmp eq i64 %340, 1
  %342 = icmp eq i64 %340, 2
  br i1 %342, label %343, label %346

343:
  %344 = load ptr, ptr %329, align 8
  %345 = call ptr %344() #4
  br label %355

346:
  %347 = getelementptr inbounds i8, ptr %339, i64 8
  %348 = load i64, ptr %347, align 8
  br i1 %341, label %349, label %352

349:
  %350 = load ptr, ptr %328, align 8
  %351 = call ptr %350(i64 noundef %348) #4
  br label %355

352:
  %353 = load ptr, ptr %327, align 8
  %354 = call ptr %353(i64 noundef %348) #4
  br label %355

355:
  %356 = phi ptr [ %345, %343 ], [ %351, %349 ], [ %354, %352 ]
  %357 = icmp eq ptr %356, null
  br i1 %357, label %418, label %358

358:
  %359 = load ptr, ptr %330, align 8
  %360 = load i64, ptr %16, align 8
  %361 = add i64 %360, %337
  %362 = call i32 %359(ptr noundef %81, i64 noundef %361, ptr noundef nonnull %356) #4
  %363 = icmp slt i32 %362, 0
  br i1 %363, label %418, label %364

364:
  %365 = getelementptr inbounds i8, ptr %339, i64 8
  %366 = load i64, ptr %365, align 8
  %367 = icmp sgt i64 %366, 0
  br i1 %367, label %368, label %402

368:
  %369 = getelementptr inbounds i8, ptr %339, i64 16
  %370 = select i1 %341, ptr %334, ptr %330
  %371 = getelementptr inbounds i8, ptr %339, i64 24
  br label %376

372:
  %373 = add nuw nsw i64 %377, 1
  %374 = load i64, ptr %365, align 8
  %375 = icmp slt i64 %373, %374
  br i1 %375, label %376, label %402

376:
  %377 = phi i64 [ 0, %368 ], [ %373, %372 ]
  %378 = load ptr, ptr %369, align 8
  %379 = getelementptr i64, ptr %378, i64 %377
  %380 = load i64, ptr %379, align 8
  %381 = icmp slt i64 %380, 0
  br i1 %381, label %382, label %384

382:
  %383 = load ptr, ptr %332, align 8
  br label %387

384:
  %385 = load ptr, ptr %331, align 8
  %386 = call ptr %385(ptr noundef %81, i64 noundef %380) #4
  br label %387

387:
  %388 = phi ptr [ %383, %382 ], [ %386, %384 ]
  br i1 %342, label %389, label %395

389:
  %390 = load ptr, ptr %335, align 8
  %391 = load ptr, ptr %371, align 8
  %392 = getelementptr ptr, ptr %391, i64 %377
  %393 = load ptr, ptr %392, align 8
  %394 = call i32 %390(ptr noundef nonnull %356, ptr noundef %393, ptr noundef %388) #4
  br label %399

395:
  %396 = load ptr, ptr %333, align 8
  call void %396(ptr noundef %388) #4
  %397 = load ptr, ptr %370, align 8
  %398 = call i32 %397(ptr noundef nonnull %356, i64 noundef %377, ptr noundef %388) #4
  br label %399

399:
  %400 = phi i32 [ %394, %389 ], [ %398, %395 ]
  %401 = icmp sgt i32 %400, -1
  br i1 %401, label %372, label %418

402:
  %403 = add nuw nsw i64 %337, 1
  %404 = load i64, ptr %320, align 8
  %405 = icmp slt i64 %403, %404
  br i1 %405, label %336, label %406

406:
  %407 = phi ptr [ null, %323 ], [ %356, %402 ]
  %408 = getelementptr inbounds i8, ptr %0, i64 272
  %409 = load ptr, ptr %408, align 8
  call void %409(ptr noundef %407) #4
  br label %418

410:
  %411 = getelementptr inbounds i8, ptr %1, i64 256
  %412 = load ptr, ptr %411, align 8
  %413 = icmp eq ptr %412, null
  br i1 %413, label %428, label %414

414:
  %415 = getelementptr inbounds i8, ptr %0, i64 320
  %416 = load ptr, ptr %415, align 8
  %417 = call ptr %416(ptr noundef nonnull %412, ptr noundef %81) #4
  br label %418

418:
  %419 = phi ptr [ %417, %414 ], [ %407, %406 ], [ null, %399 ], [ null, %355 ], [ null, %358 ]
  %420 = getelementptr inbounds i8, ptr %0, i64 280
  %421 = load ptr, ptr %420, align 8
  call void %421(ptr noundef %81) #4
  br label %428

422:
  %423 = phi ptr [ %81, %106 ], [ %81, %309 ], [ %81, %139 ], [ %81, %313 ], [ %48, %57 ], [ %48, %65 ], [ %48, %71 ]
  %424 = icmp eq ptr %423, null
  br i1 %424, label %428, label %425

425:
  %426 = getelementptr inbounds i8, ptr %0, i64 280
  %427 = load ptr, ptr %426, align 8
  call void %427(ptr noundef nonnull %423) #4
  br label %428

428:
  %429 = phi ptr [ %419, %418 ], [ null, %27 ], [ %81, %410 ], [ null, %425 ], [ null, %422 ]
  call void @llvm.lifetime.end.p0(i64 64, ptr nonnull %6) #6
  ret ptr %429
}

attributes #0 = { mustprogress nofree norecurse nosync nounwind willreturn memory(write, argmem: none, inaccessiblemem: none) "no-builtins" "no-jump-tables"="true" }
attributes #1 = { nounwind "no-builtins" "no-jump-tables"="true" }
attributes #2 = { mustprogress nocallback nofree nosync nounwind willreturn memory(argmem: readwrite) }
attributes #3 = { noinline nounwind "no-builtins" "no-jump-tables"="true" }
attributes #4 = { nobuiltin nounwind "no-builtins" }
attributes #5 = { nobuiltin "no-builtins" }
attributes #6 = { nounwind }
