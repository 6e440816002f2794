//! The tasks after set-up: each is one or two cargo commands, printed before they run.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::sync::LazyLock;

use anyhow::{Context, Result, bail};

use crate::libtorch::Libtorch;
use crate::{setup, tools};

/// The folder of the quick start's data; its results go beside it.
const QUICKSTART_DATA: &str = "runs/quickstart/data";

const NEXT: &str = "
Try next (loongforge is target/release/loongforge):
  loongforge generate runs/quickstart/checkpoints/step-00000750 \\
      --image runs/quickstart/data/images/held_out/000/000001.png --prompt \"Read the number.\"
  loongforge run configs/quickstart.yaml --overwrite pools.encoder.replicas=2     two encoders
  loongforge run configs/quickstart.yaml --overwrite --processes                 a process for each actor
  loongforge check configs/quickstart.yaml --show-origin                         every key and where it is set
  cargo xtask test";

pub const FIXTURES: &str = "\
Parity fixtures are small folders made once with Python transformers and committed; no test needs Python.
One folder a fixture:
  config.json, model.safetensors  the model as transformers' save_pretrained writes it
  inputs.safetensors              input_ids, attention_mask, labels, position_ids, pixel_values, image_grid_thw;
                                  packed.* is the same batch end to end in one row
  expected.safetensors            logits, loss, grad/NAME, grad_norm/NAME, packed.*, adamw.*
  fixture.json                    family, seed, reference class, hyper-parameters, versions
A new one is made with torch 2.11.0 and transformers 5.17, one thread, float32, eager attention.
`cargo xtask parity DIR…` compares our numbers with it.
";

/// Trains the small model that reads handwritten numbers; `overrides` are `key=value`.
pub fn quickstart(root: &Path, profile: Profile, overrides: &[String]) -> Result<ExitCode> {
    setup::setup(root, false)?;
    // Does nothing where the data is already there and whole.
    let code = run(loongforge(root, profile, ["data", "digits", "--out", QUICKSTART_DATA]).current_dir(root))?;
    if code != 0 {
        return Ok(ExitCode::from(code));
    }
    // A former quick start is made anew, unless told to go on with it.
    let resumes = overrides.iter().any(|word| word.starts_with("--resume"));
    let anew = if resumes { None } else { Some("--overwrite") };
    let mut train = loongforge(root, profile, ["run", "configs/quickstart.yaml"]);
    let code = run(train.args(overrides).args(anew).current_dir(root))?;
    if code == 0 {
        println!("{NEXT}");
    }
    Ok(ExitCode::from(code))
}

/// Runs every test of the workspace, or what `args` select.
pub fn test(root: &Path, args: &[String]) -> Result<ExitCode> {
    setup::setup(root, false)?;
    let mut command = tests(root, args);
    quiet_openmp(&mut command);
    seed_properties(root, &mut command);
    let code = run(&mut command)?;
    eprintln!("{}: {}", if code == 0 { "ran" } else { "failed" }, shown(&command));
    Ok(ExitCode::from(code))
}

/// Compares our numbers with the fixtures in `folders`.
pub fn parity(root: &Path, folders: &[String]) -> Result<ExitCode> {
    setup::setup(root, false)?;
    let code = run(loongforge(root, Profile::Release, ["parity"]).args(folders))?;
    Ok(ExitCode::from(code))
}

/// Returns the command of the tests: nextest where it is installed, which runs each test in its own process, as `.config/nextest.toml`
/// says.
fn tests(root: &Path, args: &[String]) -> Command {
    let has_nextest = tools::find("cargo-nextest").is_some();
    let mut command = cargo(root);
    command.args(if has_nextest { &["nextest", "run"][..] } else { &["test"] });
    let chooses = |arg: &String| arg.starts_with("-p") || arg.starts_with("--package") || arg == "--workspace";
    if !args.iter().take_while(|arg| *arg != "--").any(chooses) {
        command.arg("--workspace");
    }
    if !has_nextest {
        if args.is_empty() {
            command.args(["--lib", "--bins", "--tests", "--examples"]);
        }
        if std::env::var_os("RUST_TEST_THREADS").is_none() {
            command.env("RUST_TEST_THREADS", "2");
        }
    }
    command.args(args);
    command
}

/// Test processes share the cores: an OpenMP team that spins while it waits slows its neighbors tenfold. Where there is a GPU, tests
/// compare bits, which cuBLAS keeps with work space of a fixed size. The program sets the same for itself.
pub fn quiet_openmp(command: &mut Command) {
    command.env("OMP_WAIT_POLICY", "PASSIVE").env("GOMP_SPINCOUNT", "0").env("CUBLAS_WORKSPACE_CONFIG", ":4096:8");
}

/// Property tests draw their cases from the commit's id, so that those that failed can be run again; every commit has others.
fn seed_properties(root: &Path, command: &mut Command) {
    const SEED: &str = "PROPTEST_RNG_SEED";
    let of_commit = || u64::from_str_radix(&tools::commit_seed(root).ok()?, 16).ok();
    if std::env::var_os(SEED).is_none()
        && let Some(seed) = of_commit()
    {
        eprintln!("property tests: {SEED}={seed}");
        command.env(SEED, seed.to_string());
    }
}

/// Says which build of the program is run.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Profile {
    /// The profile that tests are built with: nothing more to build after them.
    Dev,
    Release,
}

/// Builds the program; returns where it is.
pub fn build(root: &Path, profile: Profile) -> Result<PathBuf> {
    let mut build = cargo(root);
    build.current_dir(root);
    let folder = match profile {
        // With a test of the whole program cargo unites the features that all tests are built with; without one it would
        // build most packages a second time.
        Profile::Dev => {
            build.args(["test", "--workspace", "--test", "bad_input", "--no-run"]);
            "debug"
        }
        Profile::Release => {
            build.args(["build", "--release", "--package", "loongforge", "--bin", "loongforge"]).args(av1());
            "release"
        }
    };
    if run(&mut build)? != 0 {
        bail!("the program cannot be built");
    }
    Ok(target(root).join(folder).join("loongforge"))
}

/// Builds the tests' binary of this name as the tests build it; returns where it is.
pub fn build_test(root: &Path, name: &str) -> Result<PathBuf> {
    let mut build = cargo(root);
    build.args(["test", "--workspace", "--test", name, "--no-run", "--message-format=json"]);
    let built = build.current_dir(root).stderr(Stdio::inherit()).output()?;
    if !built.status.success() {
        bail!("the tests of {name} cannot be built");
    }
    let told = String::from_utf8(built.stdout)?;
    let paths = told.split("\"executable\":\"").skip(1).filter_map(|rest| rest.split('"').next());
    let is_it = |path: &&str| path.rsplit('/').next().is_some_and(|file| file.starts_with(&format!("{name}-")));
    paths.filter(is_it).last().map(PathBuf::from).with_context(|| format!("cargo names no binary of {name}"))
}

/// Returns the arguments of a build that decodes AV1 by assembly, where nasm is there for it; says once that it is not.
fn av1() -> &'static [&'static str] {
    static ARGS: LazyLock<&[&str]> = LazyLock::new(|| {
        if tools::find("nasm").is_some() {
            return &["--features", "loongforge-core/av1-asm"];
        }
        eprintln!("nasm is not installed: this build decodes AV1 in Rust alone, which takes about four times as long");
        &[]
    });
    *ARGS
}

pub fn loongforge<const N: usize>(root: &Path, profile: Profile, args: [&str; N]) -> Command {
    let mut command = match profile {
        // The tests have built it.
        Profile::Dev => Command::new(target(root).join("debug/loongforge")),
        Profile::Release => {
            let mut command = cargo(root);
            command.args(["run", "--release", "--package", "loongforge", "--bin", "loongforge"]).args(av1()).arg("--");
            command
        }
    };
    command.args(args);
    command
}

/// Returns where cargo builds.
pub fn target(root: &Path) -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), Into::into)
}

/// Cargo as the user would have called it: what cargo told *us* about xtask is taken out of its environment,
/// and our own `LIBTORCH` is left to `.cargo/config.toml`, so that nothing is rebuilt when plain cargo follows.
pub fn cargo(root: &Path) -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    for (name, _) in std::env::vars_os() {
        let name = name.to_string_lossy();
        if name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_") {
            command.env_remove(&*name);
        }
    }
    if Libtorch::from_env(root) == Libtorch::Ours {
        command.env_remove("LIBTORCH");
    }
    command
}

/// Runs a command that shares our terminal; returns its exit status, 1 where a signal ended it.
pub fn run(command: &mut Command) -> Result<u8> {
    let line = shown(command);
    eprintln!("$ {line}");
    let status = command.status().with_context(|| format!("cannot start `{line}`"))?;
    Ok(status.code().map_or(1, |code| u8::try_from(code).unwrap_or(1)))
}

fn shown(command: &Command) -> String {
    let args = command.get_args().map(|arg| arg.to_string_lossy());
    let program = Path::new(command.get_program()).file_name().unwrap_or(command.get_program());
    std::iter::once(program.to_string_lossy()).chain(args).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(args: &[&str]) -> String {
        let args: Vec<String> = args.iter().map(|arg| arg.to_string()).collect();
        shown(&super::tests(Path::new("/nowhere"), &args))
    }

    #[test]
    fn the_whole_workspace_is_tested_unless_a_package_is_named() {
        assert!(line(&[]).contains(" --workspace"));
        assert!(line(&["pack", "--", "--package"]).contains(" --workspace pack"));
        assert!(!line(&["-p", "loongforge-core"]).contains("--workspace"));
        assert!(!line(&["--package=xtask"]).contains("--workspace"));
    }

    #[test]
    fn arguments_of_the_binary_follow_the_double_dash() {
        let command = loongforge(Path::new("/nowhere"), Profile::Release, ["parity"]);
        let shown = shown(&command);
        assert!(shown.contains("--bin loongforge") && shown.ends_with(" -- parity"), "{shown}");
    }
}
