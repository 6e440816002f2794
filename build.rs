//! Lets the binary, tests and examples of this package find libtorch by themselves: the folder it was linked from
//! becomes their run path, so that no `LD_LIBRARY_PATH` is needed. The folder is handed on under the same name to packages
//! that depend on this one, so a program outside this repository uses a copy of this file (docs/own-encoder.md).

fn main() {
    // Handed on by loongforge-torch, which knows where torch-sys found its libraries.
    println!("cargo::rerun-if-changed=build.rs");
    if let Some(folder) = std::env::var_os("DEP_LOONGFORGE_NATIVE_LIB_DIR") {
        let folder = std::path::PathBuf::from(folder);
        let folder = folder.canonicalize().unwrap_or(folder);
        println!("cargo::rustc-link-arg=-Wl,-rpath,{}", folder.display());
        println!("cargo::metadata=native_lib_dir={}", folder.display());
    }
}
