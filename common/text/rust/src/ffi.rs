//! The C boundary: slices in, sinks out, and no panic across it.

use std::ffi::c_void;
use std::panic::{catch_unwind, resume_unwind, AssertUnwindSafe};
use std::sync::{Mutex, Once, PoisonError};

#[repr(C)]
#[derive(Clone, Copy)]
pub struct KtSlice {
    pub data: *const u8,
    pub size: usize,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct KtRange {
    pub begin: usize,
    pub end: usize,
}

/// Where a result goes: called at most once, the bytes are valid during the call.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct KtSink {
    pub write: extern "C" fn(*mut c_void, *const c_void, usize),
    pub user: *mut c_void,
}

#[repr(i32)]
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Code {
    Ok = 0,
    InvalidArgument = 1,
    Unimplemented = 2,
    Internal = 3,
}

#[derive(Debug)]
pub struct Failure {
    pub code: Code,
    pub message: String,
}

pub fn invalid(message: impl Into<String>) -> Failure {
    Failure { code: Code::InvalidArgument, message: message.into() }
}

impl KtSlice {
    /// # Safety
    /// `data` points to `size` bytes that live for 'a, or `size` is 0.
    pub unsafe fn bytes<'a>(self) -> &'a [u8] {
        if self.size == 0 {
            return &[];
        }
        std::slice::from_raw_parts(self.data, self.size)
    }

    /// # Safety
    /// As for `bytes`.
    pub unsafe fn text<'a>(self, what: &str) -> Result<&'a str, Failure> {
        std::str::from_utf8(self.bytes())
            .map_err(|e| invalid(format!("{what} is not UTF-8 at byte offset {}", e.valid_up_to())))
    }
}

/// # Safety
/// `data` points to `count` values that live for 'a, or `count` is 0.
pub unsafe fn array<'a, T>(data: *const T, count: usize) -> &'a [T] {
    if count == 0 {
        return &[];
    }
    std::slice::from_raw_parts(data, count)
}

impl KtSink {
    pub fn put_bytes(&self, bytes: &[u8]) {
        (self.write)(self.user, bytes.as_ptr().cast(), bytes.len());
    }

    pub fn put_array<T: Copy>(&self, values: &[T]) {
        (self.write)(self.user, values.as_ptr().cast(), std::mem::size_of_val(values));
    }
}

/// Where the last panic happened: good enough to find a bug, whichever thread it was.
static LAST_PANIC: Mutex<String> = Mutex::new(String::new());

/// Keeps where a panic happened. Its message stays unprinted: it may hold prompt text.
fn keep_quiet() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        std::panic::set_hook(Box::new(|info| {
            let place = info.location().map_or(String::new(), |l| format!("{}:{}", l.file(), l.line()));
            *LAST_PANIC.lock().unwrap_or_else(PoisonError::into_inner) = place;
        }));
    });
}

/// Runs `body`; a failure or panic becomes a code, with the message in `error`.
pub fn guard(error: KtSink, body: impl FnOnce() -> Result<(), Failure>) -> i32 {
    keep_quiet();
    let failure = match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => return Code::Ok as i32,
        Ok(Err(failure)) => failure,
        Err(_) => Failure {
            code: Code::Internal,
            message: format!("the text library failed at {}", LAST_PANIC.lock().unwrap_or_else(PoisonError::into_inner)),
        },
    };
    error.put_bytes(failure.message.as_bytes());
    failure.code as i32
}

/// Runs `body` on a thread whose stack has `stack_bytes`, of which only what it touches takes memory.
pub fn with_stack<T: Send>(stack_bytes: usize, body: impl FnOnce() -> Result<T, Failure> + Send) -> Result<T, Failure> {
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().stack_size(stack_bytes).spawn_scoped(scope, body);
        let thread = thread.map_err(|e| Failure { code: Code::Internal, message: format!("no thread for a template: {e}") })?;
        thread.join().unwrap_or_else(|panic| resume_unwind(panic))
    })
}
