#![allow(unsafe_code, missing_docs)]
pub enum Cache {
    Auto,
}
pub struct Engine;
impl Engine {
    pub fn global() -> &'static Engine {
        &Engine
    }
    pub unsafe fn copy_raw(&self, t: *mut u8, s: *const u8, n: usize, _: Cache) {
        unsafe { std::ptr::copy_nonoverlapping(s, t, n) }
    }
    pub unsafe fn copy_strided_raw(
        &self,
        t: *mut u8,
        s: *const u8,
        rows: usize,
        row: usize,
        stride: isize,
        _: Cache,
    ) {
        for i in 0..rows {
            unsafe { std::ptr::copy_nonoverlapping(s.offset(i as isize * stride), t.add(i * row), row) }
        }
    }
}
