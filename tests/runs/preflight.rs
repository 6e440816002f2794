//! Layouts against model families: what the pre-flight accepts runs, and what it refuses could not.

use crate::fixture::{Fixture, Pictures};
use crate::soak::{self, Cell};
use loongforge::compose::Composition;
use loongforge::core::config::{self, RunConfig};
use loongforge::core::data::ModelCard;
use loongforge::preflight::Asked;
use loongforge::torch::engine::check_engines;
use loongforge::torch::model::ModelConfig;
use serde::Deserialize;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Command, Stdio};

/// Layouts and what else decides about them: a name, and overrides.
const LAYOUTS: &[(&str, &[&str])] = &[
    ("single", &[]),
    ("dp2", &["pools.foundation.replicas=2"]),
    ("tp2", &["pools.foundation.tensor_parallel=2"]),
    ("tp3", &["pools.foundation.tensor_parallel=3"]),
    ("tp2-sequence", &["pools.foundation.tensor_parallel=2", "pools.foundation.sequence_parallel=true"]),
    ("pp2", &["pools.foundation.pipeline_parallel=2"]),
    ("pp5", &["pools.foundation.pipeline_parallel=5"]),
    ("pp2-virtual2", &["pools.foundation.pipeline_parallel=2", "pools.foundation.virtual_stages=2"]),
    ("cp2", &["pools.foundation.context_parallel=2"]),
    ("cp3-ulysses", &["pools.foundation.context_parallel=3", "pools.foundation.context_attention=ulysses"]),
    ("cp2-ulysses", &["pools.foundation.context_parallel=2", "pools.foundation.context_attention=ulysses"]),
    ("cp2-chunks", &["pools.foundation.context_parallel=2", "pools.foundation.chunk_tokens=16"]),
    ("dp2-ep2", &["pools.foundation.replicas=2", "pools.foundation.expert_parallel=2"]),
    ("ep2", &["pools.foundation.expert_parallel=2"]),
    (
        "dp2-tp2-ep2",
        &["pools.foundation.replicas=2", "pools.foundation.tensor_parallel=2", "pools.foundation.expert_parallel=2"],
    ),
    ("dp2-zero1", &["pools.foundation.replicas=2", "pools.foundation.zero=1"]),
    ("dp2-zero2", &["pools.foundation.replicas=2", "pools.foundation.zero=2"]),
    ("dp2-zero3", &["pools.foundation.replicas=2", "pools.foundation.zero=3"]),
    ("chunks", &["pools.foundation.chunk_tokens=16"]),
    ("pp2-chunks", &["pools.foundation.pipeline_parallel=2", "pools.foundation.chunk_tokens=16"]),
    (
        "dp2-zero3-chunks",
        &["pools.foundation.replicas=2", "pools.foundation.zero=3", "pools.foundation.chunk_tokens=16"],
    ),
    ("mtp-cp2", &["model.mtp.num_layers=1", "pools.foundation.context_parallel=2"]),
    ("mtp-chunks", &["model.mtp.num_layers=1", "pools.foundation.chunk_tokens=16"]),
    ("colocated", &["pools.placement=colocated"]),
    ("colocated-dp2", &["pools.placement=colocated", "pools.foundation.replicas=2", "pools.encoder.replicas=2"]),
    ("encoder-tp2", &["pools.encoder.tensor_parallel=2"]),
    ("encoder-tp3", &["pools.encoder.tensor_parallel=3"]),
    ("encoder2-zero1", &["pools.encoder.replicas=2", "pools.encoder.zero=1"]),
    ("lora-pp2", &["model.foundation.lora.r=4", "pools.foundation.pipeline_parallel=2"]),
    (
        "lora-tp2",
        &[
            "model.foundation.lora.r=4",
            "pools.foundation.tensor_parallel=2",
            "model.image_encoder.freeze=true",
            "model.image_projector.freeze=true",
        ],
    ),
    ("budget", &["memory.activation_budget.foundation=64MiB"]),
];

/// A cell of the matrix.
struct Case {
    /// The `config.json` of a language model; `None`: the fixture's own model with pictures.
    model: Option<Value>,
    overrides: Vec<&'static str>,
}

/// The parity fixtures of one seed without adapters, each with its `config.json`.
fn fixtures() -> Vec<(String, Value)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/torch/tests/fixtures");
    let mut found = Vec::new();
    for entry in std::fs::read_dir(&folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        let Some(family) = name.strip_suffix("-seed1").filter(|name| !name.contains("lora")) else { continue };
        let text = std::fs::read_to_string(path.join("config.json")).unwrap();
        found.push((family.to_owned(), serde_json::from_str(&text).unwrap()));
    }
    found
}

/// The language models of the parity fixtures, with a vocabulary for the fixture's tokenizer.
fn families() -> Vec<(String, Option<Value>)> {
    let mut found = vec![("qwen3_vl-with-pictures".to_owned(), None)];
    for (family, config) in fixtures() {
        let mut config = ModelCard::of(&config).text().clone();
        // What a Gemma in PaliGemma has; alone it sees no token behind its own.
        config.as_object_mut().unwrap().remove("use_bidirectional_attention");
        if ModelConfig::supported().any(|known| config["model_type"] == known) {
            config["vocab_size"] = json!(320);
            found.push((family, Some(config)));
        }
    }
    found.sort_by(|left, right| left.0.cmp(&right.0));
    assert!(found.len() > 15, "{found:?}");
    found
}

fn cells() -> Vec<(String, Case)> {
    let cell = |(family, model): &(String, Option<Value>)| {
        let (family, model) = (family.clone(), model.clone());
        let of_layout = move |(layout, overrides): &(&str, &[&'static str])| {
            // A language model refuses keys of towers, which it does not have, but the number of colocated encoders; a layout of towers
            // alone is none of its own.
            let is_colocated = overrides.contains(&"pools.placement=colocated");
            let is_of_towers =
                |key: &str| (key.starts_with("pools.encoder.") && !is_colocated) || key.starts_with("model.image_");
            let overrides = overrides.iter().copied().filter(|key| model.is_none() || !is_of_towers(key));
            let case = Case { model: model.clone(), overrides: overrides.collect() };
            let is_layout = *layout == "single" || !case.overrides.is_empty();
            is_layout.then(|| (format!("{family} {layout}"), case))
        };
        LAYOUTS.iter().filter_map(of_layout).collect::<Vec<_>>()
    };
    families().iter().flat_map(cell).collect()
}

fn fixture(case: &Case) -> Fixture {
    match &case.model {
        None => Fixture::new(Pictures::Some),
        Some(model) => {
            let fixture = Fixture::new(Pictures::None);
            fixture.replace_model(model.clone());
            fixture
        }
    }
}

fn overrides(case: &Case) -> Vec<String> {
    let common = ["train.steps=1", "train.warmup_steps=0", "train.micro_batch_size=2", "watch.listen=null"];
    common.iter().chain(&case.overrides).map(|text| text.to_string()).collect()
}

/// Composes the run of a case, as far as its config and its model's can be read.
fn compose(fixture: &Fixture, case: &Case) -> Result<Composition, String> {
    let loaded = config::load(&fixture.config_file(), &overrides(case), std::iter::empty());
    let loaded = loaded.map_err(|report| report.to_string())?;
    Composition::unsettled(loaded.config).map_err(|error| error.to_string())
}

const ASKED: Asked = Asked { device: true, weights: true, alone: true };

/// Returns the reason for which a case is refused.
fn refusal(fixture: &Fixture, case: &Case) -> Option<String> {
    let asked = compose(fixture, case).and_then(|run| run.preflight(ASKED).map_err(|error| error.to_string()));
    asked.err().inspect(|reason| assert!(!reason.is_empty()))
}

/// Runs a step without a pre-flight.
fn step(fixture: &Fixture, case: &Case) -> Result<(), String> {
    let run = compose(fixture, case)?.settled().map_err(|error| error.to_string())?;
    run.run_with(|_| {}).map(drop).map_err(|error| error.to_string())
}

/// Checks a cell: what is accepted runs a step; what is refused does not run without being asked either.
fn holds(case: &Case) -> Result<Cell, String> {
    let fixture = fixture(case);
    match (refusal(&fixture, case), step(&fixture, case)) {
        (None, Ok(())) => Ok(Cell::Passed("runs".into())),
        (None, Err(error)) => Err(format!("accepted, and fails: {error}")),
        (Some(reason), Err(_)) => Ok(Cell::Passed(format!("refused: {reason}"))),
        (Some(reason), Ok(())) => Err(format!("runs, and is refused: {reason}")),
    }
}

/// Returns the exit code of `program` on a case, and its error or else its last line.
fn said(program: &Path, command: &str, fixture: &Fixture, case: &Case) -> (Option<i32>, String) {
    let mut child = Command::new(program);
    child.arg(command).arg(fixture.config_file()).args(overrides(case)).env("OMP_NUM_THREADS", "1");
    let output = child.stdin(Stdio::null()).output().unwrap_or_else(|error| panic!("{}: {error}", program.display()));
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    let error = text.lines().find(|line| line.starts_with("error")).or(text.lines().last());
    (output.status.code(), error.unwrap_or_default().to_owned())
}

/// Checks as [`holds`] does, and that `check` ends with 2 where a case is refused; an older program, where `LOONGFORGE_OLDER` names one,
/// does not run it either.
fn holds_of_programs(case: &Case) -> Result<Cell, String> {
    let verdict = holds(case)?;
    let Cell::Passed(mut verdict) = verdict else { return Ok(verdict) };
    let older = std::env::var_os("LOONGFORGE_OLDER");
    let is_refused = verdict.starts_with("refused");
    if is_refused {
        let (code, error) = said(Path::new(env!("CARGO_BIN_EXE_loongforge")), "check", &fixture(case), case);
        if code != Some(2) || error.is_empty() {
            return Err(format!("{verdict}; `check` ends with {code:?}: {error}"));
        }
    }
    // Of what is accepted, the plain layout shows that the older program can be started in this way.
    if let Some(older) = older.filter(|_| is_refused || case.overrides.is_empty()) {
        let (code, error) = said(Path::new(&older), "run", &fixture(case), case);
        if is_refused == (code == Some(0)) {
            return Err(format!("{verdict}; the older program ends with {code:?}: {error}"));
        }
        let code = code.map_or("a signal".to_owned(), |code| code.to_string());
        verdict += &format!("; the older program ends with {code} {error}");
    }
    Ok(Cell::Passed(verdict))
}

#[test]
#[ignore = "soak"]
fn soak_preflight() {
    soak::run("preflight", &cells(), holds_of_programs);
}

#[test]
fn a_verdict_is_what_a_run_comes_to() {
    let cells = cells();
    for name in
        ["qwen2.5 tp3", "qwen3 pp2", "deepseek_v3 chunks", "qwen3_moe dp2-ep2", "qwen3_vl-with-pictures encoder-tp3"]
    {
        let (_, case) = cells.iter().find(|(cell, _)| cell == name).unwrap_or_else(|| panic!("no cell {name}"));
        let verdict = holds(case).unwrap_or_else(|error| panic!("{name}: {error}"));
        let is_refused = matches!(&verdict, Cell::Passed(figure) if figure.starts_with("refused"));
        assert_eq!(is_refused, ["tp3", "chunks", "encoder-tp3"].contains(&name.split(' ').nth(1).unwrap()), "{name}");
    }
}

#[test]
fn a_device_of_a_pool_that_is_not_here_is_refused_with_its_key() {
    let case = Case { model: None, overrides: vec!["device=cpu", "pools.encoder.device=cuda:99"] };
    let reason = refusal(&fixture(&case), &case).unwrap();
    assert!(reason.starts_with("pools.encoder.device"), "{reason}");
}

/// What a build of commit ac896d7, which had no pre-flight, did with the layouts of the families that it knew, but those of towers,
/// which it ignored: `cargo xtask soak preflight` with `LOONGFORGE_OLDER`, on 2026-11-22.
#[derive(Deserialize)]
struct FirstAccepted {
    families: Vec<String>,
    /// Layouts in which none of them ran.
    refused_of_all: Vec<String>,
    /// Families that did not run, by layout.
    refused: BTreeMap<String, Vec<String>>,
}

impl FirstAccepted {
    fn read() -> Self {
        serde_json::from_str(include_str!("first_accepted.json")).unwrap()
    }

    fn could_run(&self, family: &str, layout: &str) -> bool {
        let is_in = |names: &[String], name: &str| names.iter().any(|known| known == name);
        let is_refused = self.refused.get(layout).is_some_and(|families| is_in(families, family));
        is_in(&self.families, family) && !is_in(&self.refused_of_all, layout) && !is_refused
    }
}

/// The configs of all layouts, or why one cannot be read.
fn loaded_layouts() -> Vec<(&'static str, Result<RunConfig, String>)> {
    let fixture = Fixture::new(Pictures::None);
    let loaded = LAYOUTS.iter().map(|(layout, overrides)| {
        let overrides: Vec<String> = overrides.iter().map(|text| text.to_string()).collect();
        let loaded = config::load(&fixture.config_file(), &overrides, std::iter::empty());
        (*layout, loaded.map(|loaded| loaded.config).map_err(|report| report.to_string()))
    });
    loaded.collect()
}

/// What becomes of a layout of a model; with a reason where it is refused.
fn verdict(config: &Result<RunConfig, String>, model: &ModelConfig) -> Result<(), String> {
    let config = config.clone()?;
    let mut model = model.clone();
    if config.model.mtp.num_layers.is_some() && model.edit_decoder(|decoder| decoder.enable_mtp(1, 0.1)) != Some(true) {
        return Err("no place for multi-token prediction".to_owned());
    }
    check_engines(&config, &model).map_err(|error| error.to_string()).inspect_err(|reason| assert!(!reason.is_empty()))
}

/// Every layout of every family has a verdict; the plain one is accepted, and so is what could run before there was a pre-flight.
#[test]
fn every_layout_of_every_family_has_a_verdict() {
    let (loaded, first) = (loaded_layouts(), FirstAccepted::read());
    let (mut accepted, mut refused) = (0, 0);
    for (name, model) in families().into_iter().filter_map(|(name, model)| Some((name, model?))) {
        let model = ModelConfig::from_hf(&model).unwrap();
        for (layout, config) in &loaded {
            let verdict = verdict(config, &model);
            assert!(*layout != "single" || verdict == Ok(()), "{name}: {verdict:?}");
            let is_shut_out = verdict.is_err() && !layout.starts_with("encoder") && first.could_run(&name, layout);
            assert!(!is_shut_out, "{name} {layout} could run once: {verdict:?}");
            (accepted, refused) = (accepted + usize::from(verdict.is_ok()), refused + usize::from(verdict.is_err()));
        }
    }
    assert!(accepted > refused && refused > 100, "{accepted} accepted, {refused} refused");
}

/// Models with towers as a whole, in which layouts of encoders count as well.
#[test]
fn every_layout_of_every_model_with_towers_has_a_verdict() {
    let loaded = loaded_layouts();
    let (mut found, mut refused) = (Vec::new(), 0);
    for (name, config) in fixtures() {
        let model = ModelConfig::from_hf(&config).unwrap_or_else(|error| panic!("{name}: {error}"));
        if model.towers.set().is_empty() {
            continue;
        }
        for (layout, config) in &loaded {
            let verdict = verdict(config, &model);
            assert!(!["single", "dp2", "colocated"].contains(layout) || verdict == Ok(()), "{name}: {verdict:?}");
            refused += usize::from(verdict.is_err() && layout.starts_with("encoder-tp"));
        }
        found.push(name);
    }
    assert!(found.len() > 20 && refused > 0, "{found:?}, {refused} refused");
}

/// Adapters may name modules that only one stage of a pipeline has.
#[test]
fn stages_need_not_have_what_adapters_name() {
    let fixture = Fixture::new(Pictures::None);
    let (_, model) = families().into_iter().find(|(name, _)| name == "qwen3").unwrap();
    let model = ModelConfig::from_hf(&model.unwrap()).unwrap();
    for named in ["target_modules: [layers.0.self_attn.q_proj]", "modules_to_save: [embed_tokens]"] {
        let lora = format!("model.foundation.lora={{r: 4, {named}}}");
        let overrides = [lora, "pools.foundation.pipeline_parallel=2".to_owned()];
        let loaded = config::load(&fixture.config_file(), &overrides, std::iter::empty());
        let config = loaded.map_err(|report| report.to_string()).unwrap().config;
        assert_eq!(check_engines(&config, &model).map_err(|error| error.to_string()), Ok(()), "{named}");
    }
}
