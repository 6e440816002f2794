//! Tensors that are no parameters of the model and are taken along.

use super::*;
use std::sync::atomic::AtomicBool;

#[test]
fn bytes_go_from_folder_to_folder_in_files_of_their_own() {
    let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let talker = [("talker.b", numbers(&[5, 4], Kind::BFloat16)), ("talker.a", numbers(&[3], Kind::Double))];
    let rest = [("model.weight", numbers(&[2], Kind::Float)), ("wave.x", numbers(&[6], Kind::Half))];
    let all = talker.iter().chain(&rest).map(|(name, tensor)| (*name, tensor.shallow_clone()));
    write(from.path(), SINGLE_FILE, &all.collect::<Vec<_>>());
    let open = || Checkpoint::open(from.path()).unwrap();
    let find = |prefixes: &[&str], ignore: &[&str]| {
        let ignore: Vec<String> = ignore.iter().map(|pattern| (*pattern).to_owned()).collect();
        CarriedTensors::find(open(), prefixes, &ignore, 40).unwrap()
    };
    assert!(find(&["other."], &[]).is_none() && find(&["talker."], &["talker.*"]).is_none());
    // 24 and 40 bytes do not fit into one file of 40.
    let found = find(&["talker.", "wave."], &["*.x"]).unwrap();
    let shards = Shards { of: FilesOf::Whole, first: 2, count: found.num_files(), total: 3, max_size: 40 };
    let going = AtomicBool::new(false);
    let files = found.write((to.path(), &SameFiles::default()), &shards, &going).unwrap();
    let names: Vec<(&str, &[String])> = files.iter().map(|file| (&*file.name, &*file.tensors)).collect();
    let named = |name: &str| vec![name.to_owned()];
    assert_eq!(
        names,
        [
            ("model-00002-of-00003.safetensors", &*named("talker.a")),
            ("model-00003-of-00003.safetensors", &*named("talker.b"))
        ]
    );
    for (file, (name, tensor)) in files.iter().rev().zip(&talker) {
        let path = to.path().join(&file.name);
        assert_eq!(fs::metadata(&path).unwrap().len(), file.bytes);
        fs::rename(&path, to.path().join(SINGLE_FILE)).unwrap();
        let copy = Checkpoint::open(to.path()).unwrap();
        let stored = copy.get(name).unwrap();
        assert_eq!(stored.dtype.kind(), Some(tensor.kind()));
        assert_eq!(copy.read(stored, tensor.kind()).unwrap(), *tensor);
    }
    going.store(true, std::sync::atomic::Ordering::Relaxed);
    assert!(refused(found.write((to.path(), &SameFiles::default()), &shards, &going)).contains("the run ends"));
}
