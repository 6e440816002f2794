//! Compiles the C++ shim against the libtorch that torch-sys found, and hands its library folder on.
//!
//! `cargo:lib_dir` reaches packages that depend on this one as `DEP_LOONGFORGE_NATIVE_LIB_DIR`: each package with
//! binaries or tests adds its own run path, since link arguments do not pass from a library to its dependents.

use std::path::{Path, PathBuf};

const SUPPORTED: &str = "2.11";

fn main() {
    println!("cargo:rerun-if-env-changed=LIBTORCH");
    println!("cargo:rerun-if-env-changed=LIBTORCH_INCLUDE");
    println!("cargo:rerun-if-changed=native/cpp");
    let Some(lib) = std::env::var_os("DEP_TCH_LIBTORCH_LIB") else {
        fail("torch-sys gave no library folder (DEP_TCH_LIBTORCH_LIB)");
    };
    let lib = std::path::absolute(lib).expect("a library folder has an absolute path");
    let root = match std::env::var_os("LIBTORCH_INCLUDE") {
        Some(root) => PathBuf::from(root),
        None => lib.parent().map(Path::to_path_buf).unwrap_or_default(),
    };
    let include = root.join("include");
    check_version(&include);
    println!("cargo:lib_dir={}", lib.display());
    if of_clippy() {
        return;
    }

    let openmp = openmp_of(&lib);
    compile(&include, openmp.is_some());
    println!("cargo:rustc-link-search=native={}", lib.display());
    println!("cargo:rustc-link-lib=torch_cpu");
    println!("cargo:rustc-link-lib=c10");
    if let Some(openmp) = openmp {
        println!("cargo:rustc-link-lib=dylib:+verbatim={openmp}");
    }
    println!("cargo:rustc-link-arg=-Wl,-rpath,{}", lib.display());
}

/// Compiles the shim; its loops run on many threads where libtorch brings an OpenMP library.
fn compile(include: &Path, has_openmp: bool) {
    // at::parallel_for is a template that runs on one thread where it is compiled without OpenMP.
    let mut build = cc::Build::new();
    match (has_openmp, build.cpp(true).get_compiler().is_like_gnu()) {
        (true, true) => build.flag("-fopenmp"),
        _ => {
            println!(
                "cargo:warning=loongforge's kernels use one thread each: they need GCC and libtorch's own libgomp"
            );
            build.flag("-fopenmp-simd")
        }
    };
    build
        .std("c++17")
        .pic(true)
        .warnings(false)
        // Of torch's headers it takes more time than the code, and 15 MB a file to link.
        .debug(false)
        // Loops over tensors are worth it in every profile.
        .opt_level(3)
        .flag("-fno-math-errno")
        .flag("-fno-trapping-math")
        .include("native/cpp/stubs")
        .include(include)
        .include(include.join("torch/csrc/api/include"))
        .define("USE_DISTRIBUTED", None)
        .define("USE_C10D_GLOO", None)
        .define("_GLIBCXX_USE_CXX11_ABI", "1")
        .flag("-fvisibility=hidden")
        .files(
            [
                "shim",
                "c10d",
                "attention",
                "fused",
                "modulate",
                "products",
                "chains",
                "gemm",
                "cross_entropy",
                "adamw",
                "adamw8bit",
                "quantized",
                "delta",
                "saved",
                "stream",
                "storage",
                "arena",
                "memory",
                "dry_run",
                "profile",
            ]
            .map(|name| format!("native/cpp/{name}.cpp")),
        )
        .compile("loongforge_native");
}

/// Says whether clippy asks, which links nothing: cargo keeps its build apart, so that the shim would be compiled twice.
fn of_clippy() -> bool {
    let wrapper = std::env::var_os("RUSTC_WORKSPACE_WRAPPER").unwrap_or_default();
    Path::new(&wrapper).file_stem().is_some_and(|name| name == "clippy-driver")
}

/// Returns the name of the OpenMP library that libtorch brings with it: a second one in a process has threads of its own.
fn openmp_of(lib: &Path) -> Option<String> {
    let mut found: Vec<String> = std::fs::read_dir(lib)
        .ok()?
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .filter(|name| name.starts_with("libgomp") && name.contains(".so.1"))
        .collect();
    found.sort();
    found.into_iter().next()
}

/// torch-sys does not check the version of libtorch where it comes from a Python wheel.
fn check_version(include: &Path) {
    let header = include.join("torch/headeronly/version.h");
    let Ok(text) = std::fs::read_to_string(&header) else {
        fail(&format!(
            "no libtorch headers at {}: run `cargo xtask setup`, or set LIBTORCH to libtorch {SUPPORTED}",
            include.display()
        ));
    };
    let number = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(&format!("#define TORCH_VERSION_{name} ")));
        line.map(|value| value.trim().to_string()).unwrap_or_default()
    };
    let found = format!("{}.{}", number("MAJOR"), number("MINOR"));
    if found != SUPPORTED {
        fail(&format!(
            "libtorch {found} found at {}, but {SUPPORTED} is needed: run `cargo xtask setup`",
            include.display()
        ));
    }
}

fn fail(message: &str) -> ! {
    println!("cargo::error={message}");
    std::process::exit(1)
}
