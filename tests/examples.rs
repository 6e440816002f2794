//! The examples run and do what they say. `cargo test` builds them; where it was told not to, build them first with
//! `cargo build --examples`.

use loongforge::core::data::heard_and_seen::{HeardAndSeen, compose};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

fn example(name: &str) -> PathBuf {
    let mut dir = std::env::current_exe().unwrap();
    while dir.file_name().is_some_and(|name| name != "deps") {
        dir.pop();
    }
    dir.with_file_name("examples").join(name)
}

/// Runs a program in a folder.
fn start(program: &Path, dir: &Path, args: &[&str]) -> Output {
    let output = Command::new(program).args(args).current_dir(dir).output();
    output.unwrap_or_else(|error| panic!("{}: {error}; cargo build --examples", program.display()))
}

/// Returns the output of a command of an example on both streams.
fn succeeds(name: &str, dir: &Path, args: &[&str]) -> String {
    let output = start(&example(name), dir, args);
    let text = [output.stdout, output.stderr].map(|bytes| String::from_utf8(bytes).unwrap()).concat();
    assert!(output.status.success(), "{name} {args:?}: {}\n{text}", output.status);
    text
}

/// Returns the output of an example.
fn run(name: &str) -> String {
    let output = start(&example(name), Path::new("."), &[]);
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    assert!(output.status.success(), "{name}: {}\n{}", output.status, text(&output.stderr));
    assert_eq!(text(&output.stderr), "", "{name}");
    text(&output.stdout)
}

/// Returns the last number of every line.
fn numbers(printed: &str) -> Vec<f64> {
    let last = |line: &str| line.split_whitespace().last().unwrap().parse().unwrap();
    printed.lines().map(last).collect()
}

#[test]
fn a_composed_run_learns() {
    let losses = numbers(&run("compose_run"));
    assert_eq!(losses.len(), 20);
    assert!(losses[19] < 0.7 * losses[0], "{losses:?}");
}

#[test]
fn a_custom_encoder_learns() {
    let errors = numbers(&run("custom_encoder"));
    assert_eq!(errors.len(), 20);
    assert!(errors[19] < 0.1 * errors[0], "{errors:?}");
}

/// Returns the loss of every step as it was written: shortest decimals that read back to the same bits.
fn losses(run: &Path) -> Vec<String> {
    let text = std::fs::read_to_string(run.join("metrics.jsonl")).unwrap();
    let loss = |line: &str| line.split("\"loss\":").nth(1).unwrap().split(',').next().unwrap().to_owned();
    text.lines().map(loss).collect()
}

/// Returns a folder with the example's config, as the example's first lines say it.
fn folder(config: &str) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    std::fs::copy(root.join("examples").join(config), dir.path().join(config)).unwrap();
    std::os::unix::fs::symlink(root.join("configs"), dir.path().join("configs")).unwrap();
    dir
}

/// Checks that the built-in program says which name it does not know.
fn is_refused_without(config: &str, dir: &Path, name: &str, expected: &str) {
    let output = start(Path::new(env!("CARGO_BIN_EXE_loongforge")), dir, &["check", config]);
    let text = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{text}");
    assert!(text.contains(name) && text.contains(expected), "{text}");
}

/// Runs the config in one process and as processes; returns the losses, which are the same.
fn in_one_process_and_in_many(example: &str, config: &str, dir: &Path) -> Vec<f64> {
    let common = ["run", config, "train.steps=6", "log.tensorboard=false", "security.sandbox=off"];
    succeeds(example, dir, &[&common[..], &["run.dir=one"]].concat());
    succeeds(example, dir, &[&common[..], &["run.dir=many", "--processes"]].concat());
    let found = losses(&dir.join("one"));
    assert_eq!((found.len(), &losses(&dir.join("many"))), (6, &found));
    found.iter().map(|loss| loss.parse().unwrap()).collect()
}

#[test]
fn encoders_of_ones_own_work_with_every_command() {
    let (name, config) = ("three_pools", "three_pools.yaml");
    let dir = folder(config);
    let dir = dir.path();
    compose(&dir.join("runs/three_pools/data"), &HeardAndSeen { seed: 1, num_train: 48, num_held_out: 4 }).unwrap();
    let losses = in_one_process_and_in_many(name, config, dir);
    assert!(losses[5] < 0.95 * losses[0], "{losses:?}");

    let text = succeeds(name, dir, &["check", config]);
    for part in ["image_encoder: 98,304 parameters", "audio_encoder: 10,240 parameters", "foundation: "] {
        assert!(text.contains(part), "{text}");
    }
    let plan = succeeds(name, dir, &["plan", config]);
    for words in ["1 audio actor, 1 encoder actor, 1 foundation actor", "\n  audio  ", "\n  encoder  "] {
        assert!(plan.contains(words), "{words:?} is not in\n{plan}");
    }
    let job = ["launch", config, "--on", "ssh", "--hosts", "a,b,c,d", "--insecure-allow-plaintext"];
    assert!(succeeds(name, dir, &job).contains("--pool audio"));
    let held_out = "runs/three_pools/data/held_out.jsonl";
    assert!(succeeds(name, dir, &["evaluate", "one", held_out]).contains("perplexity"));
    let picture = "runs/three_pools/data/images/held_out/00000.png";
    succeeds(name, dir, &["generate", "one/checkpoints/step-00000006", "--image", picture, "--prompt", "Say it."]);

    is_refused_without(config, dir, "frames", "audio_encoder.model_type");
    let other = start(Path::new(env!("CARGO_BIN_EXE_loongforge")), dir, &["evaluate", "one", held_out]);
    let text = String::from_utf8(other.stderr).unwrap();
    assert!(other.status.code() == Some(2) && text.contains("open the folder with that program"), "{text}");
    let twice = start(&example(name), dir, &["check", config, "+model.image_projector.config.model_type=mlp"]);
    let text = String::from_utf8(twice.stderr).unwrap();
    assert!(
        twice.status.code() == Some(2) && text.contains("image_projector") && text.contains("leave it out"),
        "{text}"
    );
    let wrong = start(&example(name), dir, &["check", config, "model.image_encoder.config.row_size=x"]);
    let text = String::from_utf8(wrong.stderr).unwrap();
    assert!(
        wrong.status.code() == Some(2) && text.contains("image_encoder (blocks): row_size must be a number"),
        "{text}"
    );
}

#[test]
fn a_foundation_and_a_maker_of_ones_own_work_with_processes() {
    let (name, config) = ("own_foundation", "own_foundation.yaml");
    let dir = folder(config);
    let dir = dir.path();
    let losses = in_one_process_and_in_many(name, config, dir);
    assert!(losses[5] < 0.95 * losses[0], "{losses:?}");
    assert!(succeeds(name, dir, &["check", config]).contains("16,896 parameters"));
    is_refused_without(config, dir, "bigram", "model_type");
    // Samples are of the program's own maker: without it other letters are learned.
    let line = r#"{"messages":[{"role":"user","content":"Say it."},{"role":"assistant","content":"it"}]}"#;
    std::fs::write(dir.join("words.jsonl"), [line; 8].join("\n")).unwrap();
    let first = |maker: &str, to: &str| {
        let words = ["train.steps=1", "train.warmup_steps=1", "data.train=[{path: words.jsonl}]"];
        let own = [format!("data.maker={maker}"), format!("run.dir={to}")];
        succeeds(name, dir, &[&["run", config][..], &words, &own.each_ref().map(String::as_str)].concat());
        self::losses(&dir.join(to))
    };
    assert_ne!(first("null", "plain"), first("shouted", "loud"));
    let other = start(&example(name), dir, &["check", config, "data.maker=whispered"]);
    let text = String::from_utf8(other.stderr).unwrap();
    assert!(other.status.code() == Some(2) && text.contains("data.maker") && text.contains("has shouted"), "{text}");
    let answer = start(&example(name), dir, &["generate", "one/checkpoints/step-00000006", "--prompt", "Say it."]);
    let text = String::from_utf8(answer.stderr).unwrap();
    assert!(!answer.status.success() && text.contains("a bigram model is not a language model"), "{text}");
}

/// Writes the files of a package and returns its folder's name.
fn package<'a>(dir: &Path, name: &'a str, manifest: &str, build: &str) -> &'a str {
    let folder = dir.join(name);
    std::fs::create_dir_all(folder.join("src")).unwrap();
    let head = format!("[package]\nname = \"{name}\"\nversion = \"0.1.0\"\nedition = \"2024\"\n{manifest}\n");
    std::fs::write(folder.join("Cargo.toml"), head).unwrap();
    std::fs::write(folder.join("build.rs"), build).unwrap();
    std::fs::write(folder.join("src/lib.rs"), "").unwrap();
    name
}

/// Cargo hands what a build script prints to direct dependents only, so loongforge must hand libtorch's folder on. Packages that
/// are empty but for the real build script and the real name of `links` show it, without building loongforge again.
#[test]
fn a_program_elsewhere_gets_the_run_path() {
    let dir = tempfile::tempdir().unwrap();
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let read = |name: &str| std::fs::read_to_string(root.join(name)).unwrap();
    let links = |manifest: &str| read(manifest).lines().find(|line| line.starts_with("links = ")).unwrap().to_owned();
    let build = read("build.rs");
    let of_torch = "fn main() { println!(\"cargo:lib_dir=/opt\"); }";
    let torch = package(dir.path(), "torch", &links("src/torch/Cargo.toml"), of_torch);
    let torch = format!("{}\n[dependencies]\n{torch} = {{ path = \"../torch\" }}", links("Cargo.toml"));
    let loongforge = package(dir.path(), "loongforge", &torch, &build);
    let user = format!("[dependencies]\n{loongforge} = {{ path = \"../loongforge\" }}");
    let user = dir.path().join(package(dir.path(), "user", &user, &build));
    let args = ["build", "--offline", "--message-format", "json", "--target-dir", "target"];
    let output = start(Path::new(env!("CARGO")), &user, &args);
    let text = [output.stdout, output.stderr].map(|bytes| String::from_utf8(bytes).unwrap()).concat();
    assert!(output.status.success(), "{text}");
    let of_user = text.lines().find(|line| line.contains("build-script-executed") && line.contains("/user#"));
    let out_dir: serde_json::Value = serde_json::from_str(of_user.unwrap_or_else(|| panic!("{text}"))).unwrap();
    let printed = Path::new(out_dir["out_dir"].as_str().unwrap()).with_file_name("output");
    assert!(std::fs::read_to_string(printed).unwrap().contains("-rpath,/opt"), "{text}");
}
