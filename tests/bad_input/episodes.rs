//! Commands of `loongforge data` on a LeRobot set.

use crate::fixture::Fixture;
use std::path::Path;

#[test]
fn commands_of_data_know_the_episodes_of_a_set() {
    let fixture = Fixture::empty();
    let set = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/core/data/goldens/lerobot/v21").display().to_string();
    let data = |words: &[&str]| fixture.succeeds(&[&["data"][..], words, &["--no-sandbox"]].concat()).out;
    let said = data(&["inspect", &set]);
    for part in ["lerobot, 24 samples", "observation.images.front", "(shoulder, elbow, gripper)", "pick_up the cube"] {
        assert!(said.contains(part), "{part}: {said}");
    }
    // Frames of the camera, and below them three numbers of actions and three of states.
    let said = data(&["inspect", &set, "--episode", "1", "--sheet", "episode.png"]);
    assert!(said.contains("episode 1: open the drawer (12 frames, 10 a second)"), "{said}");
    let sheet = image::open(fixture.path("episode.png")).unwrap();
    assert!(sheet.width() > 1000 && sheet.height() > 500, "{} by {}", sheet.width(), sheet.height());
    fixture.fails(&["data", "inspect", &set, "--episode", "3", "--sheet", "none.png", "--no-sandbox"], 2, &["episode"]);

    let all_good = "24 samples, 0 of them bad";
    assert!(data(&["verify", &set]).contains(all_good));
    let said = data(&["stats", &set]);
    assert!(said.contains(all_good) && said.contains("images: sum 24"), "{said}");
    // Decoded once, and encoded again.
    for (from, to, folder) in [(set.as_str(), "lerobot-images", "decoded"), ("decoded", "lerobot-videos", "videos")] {
        let said = data(&["convert", "--to", to, from, "--out", folder]);
        assert!(said.contains(&format!("{folder}: 3 episodes, 24 frames")), "{said}");
        assert!(data(&["verify", folder]).contains(all_good));
    }
    let said = fixture.succeeds(&["data", "stats", "--write", "videos"]).out;
    assert!(said.contains("videos: statistics of ") && said.contains("over 24 frames"), "{said}");
    // One picture of each episode is compared.
    let path = fixture.path("decoded/meta/info.json");
    let mut info: serde_json::Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    info["features"]["observation.images.front"]["shape"] = serde_json::json!([64, 48, 3]);
    std::fs::write(path, info.to_string()).unwrap();
    let said = fixture.start(&["data", "verify", "decoded", "--no-sandbox"]);
    assert_eq!((said.code, said.out.contains("24 samples, 3 of them bad")), (1, true), "{}{}", said.out, said.err);
    assert!(said.err.contains("observation.images.front has pictures of 64×48 pixels"), "{}", said.err);
}
