//! Groups that GR00T's `meta/modality.json` names, on the set of `groot_relative_tests.rs`.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::{Value as Json, json};

use super::groot_relative_tests::{config, floats, golden, open, open_with, write_set};
use super::kept::{self, Kept};
use crate::config::{Embodiment, Policy, TrainFile};
use crate::data::digits::{MODEL, write_model};
use crate::data::lerobot::{Set, Stats};

/// Joints, a gripper and a wrist, in another order than that of their places.
fn modality() -> Json {
    let groups = json!({
        "wrist": { "start": 3, "end": 4 }, "arm": { "start": 0, "end": 2 }, "claw": { "start": 2, "end": 3 },
    });
    json!({ "state": groups, "action": groups, "video": { "front": {} }, "annotation": { "task": { "original_key": "task_index" } } })
}

fn made(folder: &Path, modality: &Json) -> (PathBuf, PathBuf) {
    let (model, place) = (folder.join("model"), folder.join("set"));
    write_model(&model, &MODEL).unwrap();
    write_set(&place, &golden()["cases"][0]);
    std::fs::write(place.join("meta/modality.json"), modality.to_string()).unwrap();
    (model, place)
}

/// Numbers and their scales are what they are without names; the processor files have the names, and an excluded name makes its whole
/// group absolute.
#[test]
fn groups_have_the_names_of_the_set() {
    groups_have_names(Policy::default());
    let arm = Embodiment { number: Some(3), ..Embodiment::default() };
    groups_have_names(Policy { embodiments: [("arm".to_owned(), arm)].into(), ..Policy::default() });
}

fn groups_have_names(settings: Policy) {
    let folder = tempfile::tempdir().unwrap();
    let (model, place) = made(folder.path(), &modality());
    let mut excludes = config(&model);
    excludes["relative_exclude_joints"] = json!(["claw"]);
    let sets = || vec![TrainFile::new(place.as_path())];
    let maker = open_with(&model, &excludes, sets(), settings).unwrap();
    for (name, bytes) in maker.files() {
        std::fs::write(model.join(name), bytes).unwrap();
    }
    let json: Json = serde_json::from_slice(&std::fs::read(model.join("policy_preprocessor.json")).unwrap()).unwrap();
    let pack = &json["steps"][2]["config"];
    assert_eq!(pack["modality_config"]["action"]["modality_keys"], json!(["arm", "claw", "wrist"]));
    assert_eq!(pack["modality_config"]["state"]["modality_keys"], json!(["arm", "claw", "wrist"]));
    let reps =
        pack["modality_config"]["action"]["action_configs"].as_array().unwrap().iter().map(|own| own["rep"].clone());
    assert_eq!(reps.collect::<Vec<_>>(), ["RELATIVE", "ABSOLUTE", "RELATIVE"]);
    assert_eq!(pack["raw_stats"]["relative_action"]["arm"]["min"][0].as_array().unwrap().len(), 2);
    let set = Arc::new(Set::open(&place).unwrap());
    let served = open(&model, &excludes, Vec::new()).unwrap();
    assert_eq!(floats(&served, &set, 1), floats(&maker, &set, 1));
    let (predicted, state) = (vec![0.5; maker.spec.horizon * maker.spec.max_action_dim], [1.0, 2.0, 3.0, 4.0]);
    assert_eq!(served.actions(&predicted, &state).unwrap(), maker.actions(&predicted, &state).unwrap());
    std::fs::remove_file(place.join("meta/modality.json")).unwrap();
    let unnamed = tempfile::tempdir().unwrap();
    write_model(&unnamed.path().join("model"), &MODEL).unwrap();
    let unnamed = unnamed.path().join("model");
    let without = open(&unnamed, &config(&unnamed), sets()).unwrap();
    assert_eq!(floats(&without, &set, 1), floats(&maker, &set, 1));
}

#[test]
fn groups_that_do_not_fit_are_refused() {
    let error = |change: &dyn Fn(&mut Json)| {
        let (folder, mut modality) = (tempfile::tempdir().unwrap(), modality());
        change(&mut modality);
        let (model, place) = made(folder.path(), &modality);
        open(&model, &config(&model), vec![TrainFile::new(place.as_path())]).err().unwrap_or_default()
    };
    assert_eq!(error(&|_| {}), "");
    type Change<'a> = &'a dyn Fn(&mut Json);
    let cases: [(Change<'_>, &str); 6] = [
        (
            &|it| drop(it["action"].as_object_mut().unwrap().remove("wrist")),
            "the numbers 3 to 4 of action are in no group",
        ),
        (&|it| it["action"]["claw"]["end"] = 4.into(), "action.claw and action.wrist overlap in action"),
        (&|it| it["action"]["arm"]["absolute"] = false.into(), "action.arm is already relative"),
        (
            &|it| it["action"]["arm"]["original_key"] = "observation.state".into(),
            "action.arm is part of observation.state",
        ),
        (&|it| drop(it["state"].as_object_mut().unwrap().remove("arm")), "state.arm of observation.state has not"),
        (
            &|it| it["action"] = json!({ "all": { "start": 0, "end": 4 } }),
            "action.all has numbers that are relative to the state and others that are not",
        ),
    ];
    for (change, part) in cases {
        let found = error(change);
        assert!(found.contains(part) && found.contains("modality.json"), "{part}: {found}");
    }
    // Another set, whose groups are others.
    let folder = tempfile::tempdir().unwrap();
    let (model, place) = made(folder.path(), &modality());
    let other = folder.path().join("other");
    write_set(&other, &golden()["cases"][0]);
    let sets = [place, other].map(|path| TrainFile::new(path.as_path())).to_vec();
    let found = open(&model, &config(&model), sets).err().unwrap();
    assert!(found.contains("groups of actions are none") && found.contains("arm 0-2, claw 2-3, wrist 3-4"), "{found}");
}

/// Groups that a checkpoint keeps of a robot fill its actions in their order.
#[test]
fn groups_of_a_robot_that_do_not_fit_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let group = |name: &str, start: usize, end: usize| (name.to_owned(), start..end);
    let read = |action_groups: Vec<(String, std::ops::Range<usize>)>| {
        let own = Kept {
            name: "arm".to_owned(),
            number: None,
            state_dim: 4,
            action_dim: 4,
            action_names: Vec::new(),
            action_groups,
            stats: Stats::default(),
        };
        std::fs::write(folder.path().join(kept::FILE), kept::write(std::slice::from_ref(&own)).unwrap()).unwrap();
        let found = kept::read(folder.path()).map_err(|error| error.to_string())?;
        assert_eq!(found, [own]);
        Ok::<(), String>(())
    };
    assert_eq!(read(Vec::new()), Ok(()));
    assert_eq!(read(vec![group("arm", 0, 3), group("claw", 3, 4)]), Ok(()));
    for wrong in [
        vec![group("arm", 0, 3)],
        vec![group("arm", 0, 5)],
        vec![group("arm", 0, 2), group("claw", 3, 4)],
        vec![group("arm", 0, 3), group("claw", 2, 4)],
        vec![group("arm", 0, 0), group("claw", 0, 4)],
    ] {
        let error = read(wrong).unwrap_err();
        assert!(error.contains("embodiment \"arm\": `action_groups` is"), "{error}");
    }
}
