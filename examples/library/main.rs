//! Classify rows with the library that model.py writes, as main.c does:
//!
//!     rustc --edition 2021 -L . examples/library/main.rs && LD_LIBRARY_PATH=. ./main

use std::ffi::{c_char, c_int, c_void, CStr};
use std::ptr::{null, null_mut};

const F32: i32 = 11;

#[repr(C)]
#[derive(Clone, Copy)]
struct Tensor {
    data: *mut c_void,
    dtype: i32,
    rank: i32,
    shape: [i64; 8],
}

#[repr(C)]
struct Failure {
    code: i32,
    text: [c_char; 508],
}

type Program = *mut c_void;

#[link(name = "model")]
extern "C" {
    fn model_open(name: *const c_char, options: *const c_void, program: *mut Program, error: *mut Failure) -> c_int;
    fn model_close(program: Program);
    fn model_shapes(p: Program, x: *const Tensor, n: i32, y: *mut Tensor, m: i32, error: *mut Failure) -> c_int;
    fn model_run(p: Program, x: *const Tensor, n: i32, y: *mut Tensor, m: i32, error: *mut Failure) -> c_int;
}

fn checked(code: c_int, error: &Failure) {
    if code != 0 {
        let text = unsafe { CStr::from_ptr(error.text.as_ptr()) };
        panic!("error {}: {}", code, text.to_string_lossy());
    }
}

fn main() {
    let mut x: Vec<f32> = (0..80).map(|k| ((k * 7) % 11) as f32 / 11.0).collect();
    let input = Tensor { data: x.as_mut_ptr().cast(), dtype: F32, rank: 2, shape: [5, 16, 0, 0, 0, 0, 0, 0] };
    let mut outputs = [Tensor { data: null_mut(), dtype: 0, rank: 0, shape: [0; 8] }; 2];
    let mut error = Failure { code: 0, text: [0; 508] };
    let mut program: Program = null_mut();
    unsafe {
        checked(model_open(null(), null(), &mut program, &mut error), &error);
        checked(model_shapes(program, &input, 1, outputs.as_mut_ptr(), 2, &mut error), &error);
        let rows = outputs[0].shape[0] as usize;
        let mut scores = vec![0f32; rows * outputs[0].shape[1] as usize];
        let mut classes = vec![0i64; rows];
        outputs[0].data = scores.as_mut_ptr().cast();
        outputs[1].data = classes.as_mut_ptr().cast();
        checked(model_run(program, &input, 1, outputs.as_mut_ptr(), 2, &mut error), &error);
        for (row, class) in classes.iter().enumerate() {
            println!("row {}: class {}, {:.4}", row, class, scores[10 * row + *class as usize]);
        }
        model_close(program);
    }
}
