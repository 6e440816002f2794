//! Settings of glibc's `malloc` for memory that is freed.

/// Bytes that are kept at the end of a heap: the frames that a decoder of 1080p holds, or a picture of 20 megapixels.
const KEPT: i32 = 64 << 20;

/// The most that glibc allows: a larger block is mapped for itself, and unmapped when it is freed.
const MAPPED: i32 = 32 << 20;

/// Makes `malloc` keep freed memory for what is allocated next. By default it soon gives blocks of a few hundred kilobytes back to the
/// system, and a decoder that is made for each clip waits longer for the kernel to clear its pages than it decodes. Thresholds that the
/// environment sets are left alone, and a `malloc` that has none, such as a preloaded one, stays as it is.
pub fn keep_freed_memory() {
    for (name, option, value) in [
        ("MALLOC_MMAP_THRESHOLD_", libc::M_MMAP_THRESHOLD, MAPPED),
        ("MALLOC_TRIM_THRESHOLD_", libc::M_TRIM_THRESHOLD, KEPT),
    ] {
        if std::env::var_os(name).is_none() {
            // SAFETY: It takes two numbers, and may be called at any time.
            let _ = unsafe { libc::mallopt(option, value) };
        }
    }
}
