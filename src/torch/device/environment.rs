//! The environment variables of libgomp and cuBLAS, set before they are loaded.
//!
//! Both read their variables once, so a program that links this crate starts itself again with them. It does so before the constructors
//! of the libraries: those of libtorch, which register its operators, take a quarter of a second.

use std::ffi::{CStr, CString, c_char, c_int};
use std::os::unix::ffi::OsStrExt;
use std::ptr;

/// The variables that the environment must have before libtorch is loaded. Its OpenMP workers spin while they wait, and
/// two actors' pools on two cores then run many times slower than one. With work space of a fixed size cuBLAS gives the
/// same bits each time. A value that the user has set is left alone.
pub const ENVIRONMENT: [(&str, &str); 3] =
    [("OMP_WAIT_POLICY", "PASSIVE"), ("GOMP_SPINCOUNT", "0"), (CUBLAS_WORKSPACE, ":4096:8")];

/// The variable of cuBLAS's work space.
pub const CUBLAS_WORKSPACE: &str = "CUBLAS_WORKSPACE_CONFIG";

/// Returns the variables of `ENVIRONMENT` that are missing; there are some where the program could not start itself again.
pub fn missing_variables() -> impl Iterator<Item = (&'static str, &'static str)> {
    ENVIRONMENT.into_iter().filter(|(name, _)| std::env::var_os(name).is_none())
}

type Function = unsafe extern "C" fn(c_int, *const *const c_char, *const *const c_char);

/// The dynamic linker calls the functions of this section before the constructors of all libraries (System V ABI).
#[used]
#[unsafe(link_section = ".preinit_array")]
static BEFORE_CONSTRUCTORS: Function = restart;

/// Starts the program again where a variable is missing. Nothing of `std::env` works yet: libc is given its environment by a constructor.
unsafe extern "C" fn restart(_: c_int, arguments: *const *const c_char, environment: *const *const c_char) {
    // SAFETY: the dynamic linker passes what the kernel put on the stack: strings, and a null pointer behind the last.
    let given = unsafe { strings(environment) };
    let value_of = |name: &str, own: &CStr| {
        own.to_bytes().strip_prefix(name.as_bytes()).is_some_and(|rest| rest.starts_with(b"="))
    };
    let missing = ENVIRONMENT.into_iter().filter(|(name, _)| !given.iter().any(|own| value_of(name, own)));
    let missing: Vec<CString> =
        missing.filter_map(|(name, value)| CString::new(format!("{name}={value}")).ok()).collect();
    if missing.is_empty() {
        return;
    }
    let all = given.into_iter().chain(missing.iter().map(CString::as_c_str));
    let all: Vec<*const c_char> = all.map(CStr::as_ptr).chain([ptr::null()]).collect();
    // By its path, so that it keeps its name among the processes; by the link where the file has been replaced.
    let link = c"/proc/self/exe";
    let path = std::fs::read_link("/proc/self/exe").ok();
    let path = path.and_then(|path| CString::new(path.as_os_str().as_bytes()).ok());
    for program in path.as_deref().into_iter().chain([link]) {
        // SAFETY: both arrays end with a null pointer. They, their strings and `program` live until the call returns, which it does
        // where it has failed.
        unsafe { libc::execve(program.as_ptr(), arguments, all.as_ptr()) };
    }
}

/// Returns the strings of an array that ends with a null pointer.
///
/// # Safety
/// All of them live as long as the program, and nobody changes them.
unsafe fn strings(array: *const *const c_char) -> Vec<&'static CStr> {
    // SAFETY: `at` does not pass the null pointer, and each pointer before it is a string.
    let string = |at: usize| unsafe { (*array.add(at)).as_ref().map(|begin| CStr::from_ptr(begin)) };
    (0..).map_while(string).collect()
}
