//! A folder with a tiny model, a few pictures and a run of two steps, and the program started on it.

use loongforge::core::data::digits::{Digits, MODEL, ModelSize, compose, write_model};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant, UNIX_EPOCH};
use tempfile::TempDir;

/// Longer than any of these runs takes: whoever needs more hangs.
const HANGS: Duration = Duration::from_secs(300);

pub const SIZE: ModelSize = ModelSize {
    hidden_size: 48,
    intermediate_size: 64,
    num_hidden_layers: 2,
    num_attention_heads: 2,
    num_key_value_heads: 1,
    vision_depth: 2,
    vision_hidden_size: 32,
    vision_intermediate_size: 48,
    vision_num_heads: 2,
    ..MODEL
};

/// The run's last checkpoint.
pub const CHECKPOINT: &str = "run/checkpoints/step-00000002";

/// Paths in it are relative, as the program is started in it. Its pictures are decoded in the program itself: a process that decodes
/// takes longer to start than a command that is refused.
pub struct Fixture {
    dir: TempDir,
}

/// The output of the program.
pub struct Said {
    pub code: i32,
    pub out: String,
    pub err: String,
}

impl Fixture {
    pub fn new() -> Self {
        Self::new_in(tempfile::tempdir().unwrap())
    }

    fn new_in(dir: TempDir) -> Self {
        compose(&dir.path().join("data"), &Digits { seed: 3, num_train: 40, num_held_out: 4 }).unwrap();
        write_model(&dir.path().join("model"), &SIZE).unwrap();
        let config = "\
run: { name: test, dir: run, seed: 5 }
model: { load: model, weights: random }
pools: { encoder: { threads: 1 }, foundation: { threads: 1 } }
data: { train: [{ path: data/train.jsonl }], shuffle: false, pack: { max_tokens: 128 } }
train: { steps: 2, global_batch_size: 8, lr: 2e-3 }
security: { sandbox: 'off' }
";
        fs::write(dir.path().join("run.yaml"), config).unwrap();
        Self { dir }
    }

    /// Makes an empty folder.
    pub fn empty() -> Self {
        Self { dir: tempfile::tempdir().unwrap() }
    }

    /// Makes a folder as it is after the run, with its checkpoint: a copy of what the first test that needs one has made with these
    /// programs.
    pub fn trained() -> Self {
        let all = Path::new(env!("CARGO_TARGET_TMPDIR"));
        fs::create_dir_all(all).unwrap();
        let test = std::env::current_exe().unwrap();
        let written = [Path::new(env!("CARGO_BIN_EXE_loongforge")), &test]
            .map(|program| fs::metadata(program).unwrap().modified().unwrap().duration_since(UNIX_EPOCH).unwrap());
        let folder = all.join(format!("trained-{}-{}", written[0].as_nanos(), written[1].as_nanos()));
        // One makes it, and the others wait.
        let lock = fs::File::create(all.join("trained.lock")).unwrap();
        lock.lock().unwrap();
        if !folder.is_dir() {
            let is_old = |path: &PathBuf| {
                let name = path.file_name().unwrap().to_string_lossy();
                path.is_dir() && (name.starts_with("trained-") || name.starts_with(".trained-"))
            };
            let old = fs::read_dir(all).unwrap().map(|entry| entry.unwrap().path()).filter(is_old);
            old.for_each(|old| fs::remove_dir_all(old).unwrap());
            let made = Self::new_in(tempfile::Builder::new().prefix(".trained-").tempdir_in(all).unwrap());
            made.succeeds(&["run", "run.yaml"]);
            fs::rename(made.dir.path(), &folder).unwrap();
        }
        let fixture = Self::empty();
        let copied = Command::new("cp").arg("-a").arg(folder.join(".")).arg(fixture.path(".")).status().unwrap();
        assert!(copied.success() && fixture.path(CHECKPOINT).is_dir());
        fixture
    }

    pub fn path(&self, name: impl AsRef<Path>) -> PathBuf {
        self.dir.path().join(name)
    }

    pub fn read(&self, name: &str) -> String {
        fs::read_to_string(self.path(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
    }

    pub fn write(&self, name: &str, contents: impl AsRef<[u8]>) {
        let path = self.path(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, contents).unwrap();
    }

    /// Replaces text that must be there.
    pub fn edit(&self, name: &str, from: &str, to: &str) {
        let text = self.read(name);
        assert!(text.contains(from), "{name} lacks {from}");
        self.write(name, text.replace(from, to));
    }

    /// Cuts a file to this many bytes.
    pub fn cut(&self, name: &str, len: u64) {
        let file = fs::File::options().write(true).open(self.path(name)).unwrap();
        assert!(file.metadata().unwrap().len() > len, "{name}");
        file.set_len(len).unwrap();
    }

    pub fn copy(&self, from: &str, to: &str) {
        fs::create_dir_all(self.path(to)).unwrap();
        for entry in fs::read_dir(self.path(from)).unwrap() {
            let entry = entry.unwrap();
            fs::copy(entry.path(), self.path(to).join(entry.file_name())).unwrap();
        }
    }

    /// Returns every file below a folder with its contents; sockets have none.
    pub fn contents(&self, folder: &str) -> BTreeMap<PathBuf, Vec<u8>> {
        let (mut found, mut folders) = (BTreeMap::new(), vec![self.path(folder)]);
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(folder).unwrap() {
                let path = entry.unwrap().path();
                if path.is_dir() {
                    folders.push(path);
                } else if path.is_file() {
                    found.insert(path.clone(), fs::read(&path).unwrap());
                }
            }
        }
        found
    }

    /// Starts the program and waits for its end.
    pub fn start(&self, args: &[&str]) -> Said {
        self.start_in(args, &[])
    }

    /// Works like [`Fixture::start`], with variables of the environment.
    pub fn start_in(&self, args: &[&str], environment: &[(&str, &str)]) -> Said {
        let file = |name: &str| fs::File::create(self.path(name)).unwrap();
        let mut child = Command::new(env!("CARGO_BIN_EXE_loongforge"))
            .args(args)
            .current_dir(self.dir.path())
            .env("OMP_NUM_THREADS", "1")
            // GPUs are hidden: every machine is one without.
            .env("CUDA_VISIBLE_DEVICES", "")
            .envs(environment.iter().copied())
            .stdin(Stdio::null())
            .stdout(file("stdout"))
            .stderr(file("stderr"))
            .spawn()
            .unwrap();
        let start = Instant::now();
        let status = loop {
            if let Some(status) = child.try_wait().unwrap() {
                break status;
            }
            if start.elapsed() > HANGS {
                child.kill().unwrap();
                panic!("{args:?} hangs; it said\n{}", self.read("stderr"));
            }
            std::thread::sleep(Duration::from_millis(5));
        };
        let said = Said { code: status.code().unwrap_or(-1), out: self.read("stdout"), err: self.read("stderr") };
        for text in ["panicked", "RUST_BACKTRACE", "stack backtrace"] {
            assert!(!said.err.contains(text) && !said.out.contains(text), "{args:?} panics:\n{}", said.err);
        }
        said
    }

    pub fn succeeds(&self, args: &[&str]) -> Said {
        let said = self.start(args);
        assert_eq!(said.code, 0, "{args:?}:\n{}", said.err);
        said
    }

    /// The program ends with this exit code, and says all of `words` on its error stream.
    #[track_caller]
    pub fn fails(&self, args: &[&str], code: i32, words: &[&str]) {
        let said = self.start(args);
        assert_eq!(said.code, code, "{args:?}:\n{}", said.err);
        for word in words {
            assert!(said.err.contains(word), "{args:?} does not say {word:?}:\n{}", said.err);
        }
        assert!(said.err.lines().any(|line| line.starts_with("error")), "{args:?} names no error:\n{}", said.err);
    }
}
