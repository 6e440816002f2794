//! Sets of version 2.0, whose statistics lie in another file than those of 2.1.

use super::*;

fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap().map(Result::unwrap) {
        let (from, to) = (entry.path(), to.join(entry.file_name()));
        if from.is_dir() {
            copy(&from, &to);
        } else {
            std::fs::copy(from, to).unwrap();
        }
    }
}

#[test]
fn sets_of_version_2_0_are_read_as_those_of_2_1() {
    let folder = tempfile::tempdir().unwrap();
    copy(&goldens().join("v21"), folder.path());
    let meta = |name: &str| folder.path().join("meta").join(name);
    let info = std::fs::read_to_string(meta("info.json")).unwrap();
    assert!(info.contains("\"v2.1\""), "{info}");
    std::fs::write(meta("info.json"), info.replace("\"v2.1\"", "\"v2.0\"")).unwrap();
    // Those of episodes are not read.
    let missing = open(folder.path()).stats().unwrap_err().to_string();
    assert!(missing.contains("stats.json") && missing.contains("loongforge data stats --write"), "{missing}");
    let golden = expected();
    let stats = &golden["v21"]["stats"];
    std::fs::write(meta("stats.json"), stats.to_string()).unwrap();

    let (set, newer) = (open(folder.path()), open(&goldens().join("v21")));
    assert_stats(&set.stats().unwrap(), stats, 1e-12);
    let (steps, others) = (samples(&set, 0), samples(&newer, 0));
    assert_eq!((steps.len(), others.len()), (24, 24));
    for (ours, theirs) in steps.iter().zip(&others) {
        assert_eq!((ours.episode(), ours.frame()), (theirs.episode(), theirs.frame()));
        for key in ["observation.state", "action"] {
            assert_eq!(ours.window(key, &[-1, 0, 5]).unwrap(), theirs.window(key, &[-1, 0, 5]).unwrap());
        }
        assert_eq!(ours.task().unwrap(), theirs.task().unwrap());
    }
    #[cfg(feature = "mp4")]
    {
        let picture = |steps: &[Step]| steps[3].pictures(CAMERA, &[0], &InProcess, &LIMITS).unwrap();
        assert!(picture(&steps) == picture(&others));
    }
}
