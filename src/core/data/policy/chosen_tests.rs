//! Episodes of a set that are chosen, and episodes that are held out.

use std::collections::BTreeSet;

use super::tests::{Bench, config, goldens};
use crate::config::{Data, Policy, TrainFile};
use crate::data::dataset::Dataset;
use crate::data::fingerprint;
use crate::data::maker::SampleMaker;

/// Returns the set of three episodes, of 7, 12 and 5 frames.
fn data(episodes: &[&str], val_size: f64) -> Data {
    let ranges = episodes.iter().map(|range| range.parse().unwrap()).collect();
    let episodes = (!episodes.is_empty()).then_some(ranges);
    let set = TrainFile { episodes, ..TrainFile::new(goldens().join("image")) };
    Data { val_size, ..Data::of_files(vec![set]) }
}

fn maker(bench: &Bench, policy: Policy) -> Box<dyn SampleMaker> {
    Box::new(bench.maker(&config(), policy))
}

/// Returns the episode and frame of each sample.
fn places(dataset: &Dataset) -> Vec<(usize, usize)> {
    let steps = (0..dataset.len() as u64).map(|number| dataset.step_asked(number).unwrap());
    steps.map(|step| (step.episode(), step.frame())).collect()
}

fn episodes_of(places: &[(usize, usize)]) -> BTreeSet<usize> {
    places.iter().map(|place| place.0).collect()
}

#[test]
fn chosen_episodes_are_the_whole_data_set() {
    let bench = Bench::new();
    let open = |episodes: &[&str], val_size| {
        Dataset::open(&data(episodes, val_size), maker(&bench, Policy::default()), 1).map_err(|error| error.to_string())
    };
    let visited = |episodes: &[&str]| places(&open(episodes, 0.0).unwrap());
    let some = visited(&["2", "0"]);
    assert_eq!((some.len(), episodes_of(&some)), (12, BTreeSet::from([0, 2])));
    assert_eq!(some.iter().collect::<BTreeSet<_>>().len(), 12);
    // In one order, however they are listed.
    assert_eq!(visited(&["0", "2-"]), some);
    assert_eq!(visited(&["0-"]), visited(&[]));
    let error = |episodes: &[&str], val_size| open(episodes, val_size).err().unwrap();
    for (episodes, part) in [
        (&["0-3"][..], "image: `episodes`: 0-3 is not in this set, which has 3 episodes"),
        (&["0", "2-", "0"][..], "image: `episodes` names episode 0 twice"),
        (&["3-"][..], "has no samples"),
    ] {
        let found = error(episodes, 0.0);
        assert!(found.contains(part), "{found}");
    }
    let limited = TrainFile { max_samples: Some(3), ..TrainFile::new(goldens().join("image")) };
    let found = Dataset::open(&Data::of_files(vec![limited]), maker(&bench, Policy::default()), 1).err().unwrap();
    assert!(found.to_string().contains("image: is a LeRobot set, to which `max_samples` does not apply"), "{found}");
    let found = error(&["1"], 0.5);
    assert!(found.contains("data.val_size sets aside 1 of the 1 episodes of data.train.0"), "{found}");
}

#[test]
fn held_out_episodes_are_whole_and_no_frame_of_them_is_trained_on() {
    let (bench, all): (Bench, &[&str]) = (Bench::new(), &[]);
    for (episodes, val_size, frames) in [(all, 0.34, 24), (&["0-1"][..], 1.0, 19)] {
        for dropped in [0, 3] {
            let policy = || Policy { drop_last_frames: dropped, ..Policy::default() };
            let data = data(episodes, val_size);
            let train = places(&Dataset::open(&data, maker(&bench, policy()), 1).unwrap());
            let held = places(&Dataset::open_held(&data, maker(&bench, policy())).unwrap());
            assert!(episodes_of(&train).is_disjoint(&episodes_of(&held)), "{train:?} {held:?}");
            assert_eq!(episodes_of(&held).len(), 1);
            let num_episodes = episodes_of(&train).len() + 1;
            assert_eq!(train.len() + held.len(), frames - dropped * num_episodes);
            let other = places(&Dataset::open(&data, maker(&bench, policy()), 2).unwrap());
            assert_eq!(episodes_of(&other), episodes_of(&train), "the seed plays no part");
        }
    }
}

#[test]
fn a_resumed_run_notices_other_episodes() {
    let of = |episodes: &[&str]| fingerprint(&data(episodes, 0.0)).unwrap();
    let said = |old: &[&str], new: &[&str]| of(old).difference(&of(new)).map(|difference| difference.to_string());
    assert_eq!(said(&["0", "1"], &["0-1"]), None);
    assert_eq!(said(&["0-1"], &["0"]).unwrap(), "data.train.0.episodes is 0, but was 0-1");
    assert_eq!(said(&[], &["0-"]).unwrap(), "data.train.0.episodes is 0-, but was all");
}

/// Three quarters of the samples are frames of the one set; a stream that is opened again has the same frame at each position, so that a
/// run goes on anywhere.
#[test]
fn sets_are_mixed_by_their_weights() {
    let bench = Bench::new();
    let set = |name: &str, weight: f64| TrainFile { weight, ..TrainFile::new(goldens().join(name)) };
    let open = |seed| {
        let data = Data::of_files(vec![set("image", 3.0), set("v21", 1.0)]);
        Dataset::open(&data, maker(&bench, Policy::default()), seed).unwrap()
    };
    let frame = |dataset: &Dataset, position: u64| {
        let step = dataset.step_asked(position).unwrap();
        (step.set().folder().ends_with("image"), step.episode(), step.frame())
    };
    let dataset = open(1);
    let all: Vec<_> = (0..1000).map(|position| frame(&dataset, position)).collect();
    assert_eq!(all.iter().filter(|(is_first, ..)| *is_first).count(), 750);
    assert_eq!(all.iter().collect::<BTreeSet<_>>().len(), 2 * 24, "every frame of both sets");
    let again = open(1);
    assert!((500..600).all(|position| frame(&again, position) == all[position as usize]));
    let other = open(2);
    assert!((0..1000).any(|position| frame(&other, position) != all[position as usize]));
}
