//! A crash at every operation, and what users can do wrong.

use super::super::disk::swap;
use super::*;
use loongforge_core::checkpoint::latest;
use loongforge_core::message::{SampleId, StepId};
use loongforge_core::schedule::{Best, SchedulerState};
use sha2::{Digest, Sha256};
use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use tempfile::TempDir;

#[path = "publish_template_tests.rs"]
mod templates;

const INDEX: &str = "model.safetensors.index.json";

/// Does `budget` operations, half of one more, and nothing from then on.
struct Crashing {
    budget: Cell<usize>,
    synced: RefCell<BTreeSet<PathBuf>>,
}

impl Crashing {
    fn after(budget: usize) -> Self {
        Self { budget: Cell::new(budget), synced: RefCell::default() }
    }

    /// A folder may be shown only when it and all in it are on the disk.
    fn assert_synced(&self, dir: &Path) {
        let synced = self.synced.borrow();
        assert!(synced.contains(dir) && entries(dir).unwrap().iter().all(|(_, path)| synced.contains(path)));
    }

    fn live(&self) -> io::Result<()> {
        match self.budget.get() {
            0 => Err(io::Error::other("crashed")),
            left => {
                self.budget.set(left - 1);
                Ok(())
            }
        }
    }
}

impl Disk for Crashing {
    fn write(&self, path: &Path, contents: &[u8]) -> io::Result<()> {
        if self.budget.get() == 1 {
            RealDisk.write(path, &contents[..contents.len() / 2])?;
            self.budget.set(0);
            return Err(io::Error::other("crashed"));
        }
        self.live()?;
        RealDisk.write(path, contents)
    }

    fn sync(&self, path: &Path) -> io::Result<()> {
        self.live()?;
        self.synced.borrow_mut().insert(path.to_owned());
        Ok(())
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.live()?;
        if from.to_string_lossy().ends_with("3.tmp") {
            self.assert_synced(from);
        }
        RealDisk.rename(from, to)
    }

    fn exchange(&self, one: &Path, other: &Path) -> io::Result<()> {
        self.live()?;
        self.assert_synced(one);
        RealDisk.exchange(one, other)
    }

    fn remove_dir(&self, path: &Path) -> io::Result<()> {
        if self.budget.get() == 1
            && let Some(entry) = fs::read_dir(path)?.next()
        {
            fs::remove_file(entry?.path())?;
        }
        self.live()?;
        RealDisk.remove_dir(path)
    }
}

struct Run {
    folder: TempDir,
    publication: Publication,
}

impl Run {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let model_dir = folder.path().join("model");
        fs::create_dir(&model_dir).unwrap();
        fs::write(model_dir.join("tokenizer.json"), "{}").unwrap();
        fs::write(model_dir.join("preprocessor_config.json"), "{\"patch_size\": 4}").unwrap();
        fs::write(model_dir.join("model.safetensors"), "the weights before").unwrap();
        let publication = Publication {
            model_dir,
            media_dir: None,
            text_tokenizer: None,
            model_config: json!({ "model_type": "qwen3_vl" }),
            chat_template: None,
            processor: Vec::new(),
            config: json!({ "run": { "name": "digits" } }),
            precision: "float32".to_owned(),
            data: None,
            keep_last: 2,
        };
        Self { folder, publication }
    }

    fn dir(&self) -> PathBuf {
        self.folder.path().join("checkpoints")
    }

    /// Returns a draft as two engines would have written it.
    fn draft(&self, step: u64) -> CheckpointDraft {
        let dir = self.dir().join(format!(".step-{:08}.tmp", step + 1));
        prepare(&dir).unwrap();
        let weights = |name: &str, tensor: &str| {
            let header = format!("{{\"{tensor}\":{{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}}}");
            let mut contents = (header.len() as u64).to_le_bytes().to_vec();
            contents.extend(header.bytes());
            contents.extend([step as u8; 8]);
            fs::write(dir.join(name), &contents).unwrap();
            let sha256 = loongforge_core::text::hex(Sha256::digest(&contents));
            SavedFile { name: name.to_owned(), bytes: contents.len() as u64, sha256, tensors: vec![tensor.to_owned()] }
        };
        let files = vec![
            weights("model-00001-of-00002.safetensors", "model.visual.a"),
            weights("model-00002-of-00002.safetensors", "lm_head.weight"),
        ];
        let state = SchedulerState { held: vec![SampleId(3), SampleId(4)], ..SchedulerState::at(SampleId(100 * step)) };
        CheckpointDraft { step: StepId(step), to: SaveTo::Disk, dir: dir.clone(), state, files }
    }

    fn publish(&self, step: u64) -> PathBuf {
        publish_on(&Crashing::after(usize::MAX), &self.draft(step), &self.publication).unwrap()
    }

    fn names(&self) -> Vec<String> {
        let mut names: Vec<String> = entries(&self.dir()).unwrap().into_iter().map(|(name, _)| name).collect();
        names.sort();
        names
    }

    /// Checks that every checkpoint that can be seen is whole, and returns the steps of the newest.
    fn newest(&self) -> Option<u64> {
        for (number, path) in published(&self.dir()).unwrap() {
            let manifest = Manifest::read(&path).unwrap();
            manifest.verify(&path).unwrap();
            assert_eq!(manifest.num_steps, number);
        }
        latest(&self.dir()).unwrap().map(|path| Manifest::read(&path).unwrap().num_steps)
    }
}

#[test]
fn the_best_checkpoint_is_named_and_not_removed() {
    let run = Run::new();
    assert!(!mark_best(&run.dir(), 1).unwrap(), "it is not there yet");
    run.publish(0);
    assert!(mark_best(&run.dir(), 1).unwrap() && mark_best(&run.dir(), 1).unwrap());
    // The second one is better, and not named yet: neither goes.
    for step in 1..5 {
        let mut draft = run.draft(step);
        draft.state.evaluated.best = Some(Best { step: StepId(2), loss: 0.5 });
        publish(&draft, &run.publication).unwrap();
    }
    let numbers = |run: &Run| published(&run.dir()).unwrap().into_iter().map(|(number, _)| number).collect::<Vec<_>>();
    assert_eq!(numbers(&run), [1, 2, 4, 5]);
    assert!(mark_best(&run.dir(), 2).unwrap());
    assert_eq!(Manifest::read(&run.dir().join(BEST)).unwrap().num_steps, 2);
    run.publish(5);
    assert_eq!((numbers(&run), run.newest()), (vec![2, 5, 6], Some(6)));
    fs::remove_file(run.dir().join(BEST)).unwrap();
    fs::write(run.dir().join(BEST), "mine").unwrap();
    assert!(mark_best(&run.dir(), 6).unwrap_err().to_string().contains("is not a symbolic link"));
}

#[test]
fn the_best_checkpoint_is_not_kept_in_memory() {
    let run = Run::new();
    let newest_alone = Publication { keep_last: 1, ..run.publication.clone() };
    for step in 0..3 {
        let mut draft = CheckpointDraft { to: SaveTo::Memory, ..run.draft(step) };
        draft.state.evaluated.best = Some(Best { step: StepId(1), loss: 0.5 });
        publish(&draft, &newest_alone).unwrap();
        assert_eq!(run.names(), [format!("step-{:08}", step + 1)]);
    }
}

#[test]
fn a_checkpoint_is_a_whole_hugging_face_folder() {
    let run = Run::new();
    let path = publish(&run.draft(6), &run.publication).unwrap();
    assert_eq!(path, run.dir().join("step-00000007"));
    let manifest = Manifest::read(&path).unwrap();
    manifest.verify(&path).unwrap();
    assert_eq!((manifest.num_steps, manifest.scheduler.cursor), (7, SampleId(600)));
    assert_eq!(manifest.scheduler.held, [SampleId(3), SampleId(4)]);
    assert_eq!(manifest.config["run"]["name"], "digits");
    let names: Vec<&str> = manifest.files.keys().map(String::as_str).collect();
    let expected = [
        "config.json",
        "model-00001-of-00002.safetensors",
        "model-00002-of-00002.safetensors",
        "model.safetensors.index.json",
        "preprocessor_config.json",
        "tokenizer.json",
    ];
    assert_eq!(names, expected);
    let index: Value = serde_json::from_slice(&fs::read(path.join(INDEX)).unwrap()).unwrap();
    assert_eq!(index["metadata"]["total_size"], 16);
    assert_eq!(index["weight_map"]["lm_head.weight"], "model-00002-of-00002.safetensors");
    assert_eq!(run.names(), ["step-00000007"]);
}

#[test]
fn a_single_file_of_weights_has_no_index() {
    let run = Run::new();
    let mut draft = run.draft(0);
    draft.files[1].tensors.clear();
    let path = publish(&draft, &run.publication).unwrap();
    assert!(!path.join(INDEX).exists());
}

#[test]
fn a_crash_at_any_operation_leaves_the_one_before_and_nothing_torn() {
    let mut published_at = None;
    for budget in 0.. {
        let run = Run::new();
        run.publish(0);
        run.publish(1);
        let disk = Crashing::after(budget);
        let result = publish_on(&disk, &run.draft(2), &run.publication);
        let newest = run.newest().unwrap();
        match (newest, published_at) {
            (3, None) => published_at = Some(budget),
            (newest, seen) => assert_eq!(newest, if seen.is_some() { 3 } else { 2 }, "after {budget} operations"),
        }
        let finished = disk.budget.get() > 0;
        assert!(result.is_ok() || !finished);
        // The next run starts.
        clean(&run.dir()).unwrap();
        assert!(run.names().iter().all(|name| !name.starts_with('.')));
        assert_eq!(run.newest(), Some(newest));
        run.publish(3);
        assert_eq!(run.newest(), Some(4));
        if finished {
            assert!(budget > 15 && published_at < Some(budget), "{budget}");
            break;
        }
    }
}

#[test]
fn a_step_that_is_saved_again_replaces_the_old_one_at_every_moment() {
    for budget in 0.. {
        let run = Run::new();
        run.publish(4);
        let mut again = run.draft(4);
        again.state.cursor = SampleId(7);
        let disk = Crashing::after(budget);
        let _ = publish_on(&disk, &again, &run.publication);
        assert_eq!(run.newest(), Some(5), "after {budget} operations");
        if disk.budget.get() > 0 {
            let path = latest(&run.dir()).unwrap().unwrap();
            assert_eq!(Manifest::read(&path).unwrap().scheduler.cursor, SampleId(7));
            assert_eq!(run.names(), ["step-00000005"]);
            break;
        }
    }
}

#[test]
fn a_checkpoint_that_was_being_exchanged_at_a_crash_has_its_name_again() {
    let run = Run::new();
    let aside = run.dir().join(".step-00000005.aside.tmp");
    fs::rename(run.publish(4), &aside).unwrap();
    run.draft(4);
    for _ in 0..2 {
        clean(&run.dir()).unwrap();
        assert_eq!((run.newest(), run.names()), (Some(5), vec!["step-00000005".to_owned()]));
        fs::create_dir(&aside).unwrap();
    }
}

#[test]
fn folders_are_exchanged_where_a_file_system_has_only_plain_renames() {
    let run = Run::new();
    let (there, draft) = (run.publish(4), run.draft(4));
    let whole = Manifest::read(&there).unwrap();
    swap(&draft.dir, &there).unwrap();
    assert_eq!(Manifest::read(&draft.dir).unwrap(), whole);
    assert!(there.join("model-00001-of-00002.safetensors").exists() && !there.join("MANIFEST.json").exists());
    fs::remove_dir_all(&there).unwrap();
    assert!(swap(&draft.dir, &there).is_err());
    assert_eq!(run.names(), [".step-00000005.tmp"]);
    fs::create_dir(&there).unwrap();
    fs::remove_dir_all(&draft.dir).unwrap();
    assert!(swap(&draft.dir, &there).is_err());
    assert_eq!(run.names(), ["step-00000005"], "what was there is put back");
}

#[test]
fn only_the_last_ones_are_kept() {
    let run = Run::new();
    for step in 0..5 {
        run.publish(step);
    }
    assert_eq!(run.names(), ["step-00000004", "step-00000005"]);
    assert_eq!(run.newest(), Some(5));
}

#[test]
fn a_run_that_is_resumed_from_an_earlier_step_keeps_what_it_publishes() {
    let run = Run::new();
    for step in [6, 7] {
        run.publish(step);
    }
    let path = run.publish(3);
    assert!(path.is_dir());
    assert_eq!(run.names(), ["step-00000004", "step-00000007", "step-00000008"]);
    run.publish(4);
    assert_eq!(run.names(), ["step-00000005", "step-00000007", "step-00000008"]);
}

#[test]
fn what_a_resumed_run_leaves_aside_counts_for_no_checkpoint_of_its_own() {
    let run = Run::new();
    let stored = fs::read(run.publish(4).join(MANIFEST)).unwrap();
    [5, 7].into_iter().for_each(|step| drop(run.publish(step)));
    let mut left = LeftAside::of(&run.dir(), PathBuf::from("elsewhere"), None).unwrap();
    left.add(5, &stored);
    left.write(&run.dir()).unwrap();
    assert_eq!(run.newest(), None);
    [2, 3, 4].into_iter().for_each(|step| drop(run.publish(step)));
    let names = |run: &Run| run.names().into_iter().filter(|name| !name.starts_with('.')).collect::<Vec<_>>();
    // Of the fifth step only the store had one, with the same contents.
    assert_eq!(names(&run), ["step-00000004", "step-00000005", "step-00000006", "step-00000008"]);
    assert_eq!(run.newest(), Some(5));
    // What it has passed goes; a step that it saves again is its own, also with the same contents.
    run.publish(6);
    assert_eq!(names(&run), ["step-00000005", "step-00000007", "step-00000008"]);
    run.publish(7);
    assert_eq!((names(&run), run.newest()), (vec!["step-00000007".to_owned(), "step-00000008".to_owned()], Some(8)));
    // A record that is damaged loses nothing.
    fs::write(run.dir().join(files::LEFT_ASIDE), "{").unwrap();
    run.publish(8);
    assert_eq!(names(&run), ["step-00000008", "step-00000009"]);
}

#[test]
fn what_is_no_checkpoint_is_named() {
    let run = Run::new();
    assert_eq!(latest(&run.dir()).unwrap(), None);
    let read = |path: &Path| Manifest::read(path).unwrap_err().to_string();
    assert!(read(&run.publication.model_dir).contains("model is not a checkpoint: it has no MANIFEST.json"));
    assert!(read(&run.dir().join("gone")).contains("is not a checkpoint"));

    let path = run.publish(0);
    let weights = path.join("model-00002-of-00002.safetensors");
    let whole = fs::read(&weights).unwrap();
    fs::write(&weights, &whole[1..]).unwrap();
    assert!(read(&path).contains("model-00002-of-00002.safetensors has"), "{}", read(&path));
    let flipped: Vec<u8> = whole.iter().map(|byte| byte ^ 1).collect();
    fs::write(&weights, flipped).unwrap();
    let error = Manifest::read(&path).unwrap().verify(&path).unwrap_err().to_string();
    assert!(error.contains("the contents of model-00002-of-00002.safetensors"), "{error}");
    fs::remove_file(&weights).unwrap();
    assert!(read(&path).contains("model-00002-of-00002.safetensors: No such file"), "{}", read(&path));

    let text = fs::read_to_string(path.join(MANIFEST)).unwrap();
    fs::write(path.join(MANIFEST), text.replace("\"format_version\": 2", "\"format_version\": 9")).unwrap();
    assert!(read(&path).contains("has format version 9 (MANIFEST.json), but this version of loongforge reads 1 to 2"));
    let mut named = Manifest::read(&run.publish(1)).unwrap();
    let entry = named.files.remove("tokenizer.json").unwrap();
    named.files.insert("../tokenizer.json".into(), entry);
    fs::write(path.join(MANIFEST), named.to_text()).unwrap();
    assert!(read(&path).contains("names the file \"../tokenizer.json\""), "{}", read(&path));
    fs::write(path.join(MANIFEST), text.replace("tokenizer.json", "../tokenizer.json")).unwrap();
    assert!(read(&path).contains("the contents of MANIFEST.json"), "{}", read(&path));
    for end in 0..text.len() - 1 {
        fs::write(path.join(MANIFEST), &text[..end]).unwrap();
        assert!(read(&path).contains("is damaged"));
    }
}

#[test]
fn a_flipped_bit_in_any_byte_of_the_manifest_is_found() {
    let run = Run::new();
    let path = run.publish(0);
    let whole = fs::read(path.join(MANIFEST)).unwrap();
    for byte in 0..whole.len() {
        let mut flipped = whole.clone();
        flipped[byte] ^= 1 << (byte % 8);
        fs::write(path.join(MANIFEST), &flipped).unwrap();
        let error = Manifest::read(&path).expect_err("a flipped bit").to_string();
        assert!(error.contains("step-00000001") && error.contains(MANIFEST), "byte {byte}: {error}");
    }
    // One that was written without a hash of its own.
    let text = String::from_utf8(whole).unwrap().replace("\"format_version\": 2", "\"format_version\": 1");
    let old: Vec<&str> = text.lines().filter(|line| !line.contains("manifest_sha256")).collect();
    fs::write(path.join(MANIFEST), old.join("\n")).unwrap();
    Manifest::read(&path).unwrap().verify(&path).unwrap();
}

#[test]
fn folders_that_cannot_be_written_are_named() {
    let run = Run::new();
    let file = run.folder.path().join("file");
    fs::write(&file, "").unwrap();
    let error = prepare(&file.join(".step-00000001.tmp")).unwrap_err().to_string();
    assert!(error.contains("cannot write") && error.contains(".step-00000001.tmp"), "{error}");
    let draft = run.draft(0);
    fs::create_dir(draft.dir.join("config.json")).unwrap();
    let error = publish(&draft, &run.publication).unwrap_err().to_string();
    assert!(error.contains("config.json") && error.contains("is the folder writable"), "{error}");
    assert_eq!(run.newest(), None);
}

#[test]
fn an_engines_file_that_is_not_what_it_said_is_not_published() {
    let run = Run::new();
    let mut draft = run.draft(0);
    draft.files[0].bytes += 1;
    assert!(publish(&draft, &run.publication).unwrap_err().to_string().contains("its engine wrote"));
    draft.files[0].bytes -= 1;
    draft.files[1].tensors = draft.files[0].tensors.clone();
    assert!(publish(&draft, &run.publication).unwrap_err().to_string().contains("model.visual.a is in"));
    // It was written on another host.
    fs::remove_file(draft.dir.join(&draft.files[1].name)).unwrap();
    let error = publish(&draft, &run.publication).unwrap_err().to_string();
    assert!(error.contains("00002-of-00002.safetensors is not there") && error.contains("must share"), "{error}");
    assert_eq!(run.newest(), None);
}
