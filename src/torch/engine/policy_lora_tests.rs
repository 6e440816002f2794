//! Adapters of every family of policies, beside its foundation and its tower: they learn, are saved under PEFT's names, are gone on from,
//! and are added to the base in memory and in files.

use std::path::Path;
use std::rc::Rc;

use loongforge_core::config::{Lora, Part, Precision, Source};
use loongforge_core::data::Sample;
use serde_json::{Value, json};
use tch::{Device, Kind, Tensor};

use super::tests::{fixture, sample, tensor};
use super::{OpenTower, PolicyModel, groot_tests, xvla_tests};
use crate::engine::trained::trained;
use crate::engine::untrained_maps;
use crate::model::{Columns, MicroBatch, ModelConfig, NoisePurpose, SampleRow};
use crate::params::{ADAPTER_PARTS, ParamSpec, ParamStore, Role};
use crate::tape::{Execution, Policy};
use crate::train::hf::{Checkpoint, Rewrite, TensorFile, rewrite};
use crate::train::{
    AdapterFile, AdapterFolder, AdapterSettings, Adapters, adapter_config, load_adapter, load_weights, merge_adapter,
    modules_to_save, save_adapter,
};

/// Steps that are taken, and how far each goes.
const NUM_STEPS: usize = 6;
const STEP: f64 = 0.005;

/// A policy with adapters beside its foundation and its tower, which start at nothing.
struct Adapted {
    model: ModelConfig,
    params: Rc<ParamStore>,
    of_tower: Rc<ParamStore>,
}

/// The parts of a fixture that get adapters, and names that some of these have in PEFT's file.
struct Case {
    fixture: &'static str,
    targets: Option<&'static [&'static str]>,
    saved: &'static [&'static str],
    sample: fn(&Path, &PolicyModel, i64) -> Sample,
    names: &'static [&'static str],
}

/// lerobot's own targets, or all maps where it has none, with modules that are trained in full.
const CASES: [Case; 6] = [
    Case {
        fixture: "pi05-seed1",
        targets: Some(&["*.gemma_expert.*.q_proj", "*.gemma_expert.*.v_proj", "action_in_proj", "action_out_proj"]),
        saved: &["time_mlp_out"],
        sample,
        names: &[
            "model.paligemma_with_expert.gemma_expert.model.layers.0.self_attn.q_proj.lora_A.weight",
            "model.action_out_proj.lora_B.weight",
            "model.time_mlp_out.bias",
            "model.paligemma_with_expert.paligemma.model.multi_modal_projector.linear.lora_A.weight",
        ],
    },
    Case {
        fixture: "pi0-seed1",
        targets: None,
        saved: &["state_proj"],
        sample,
        names: &[
            "model.paligemma_with_expert.paligemma.model.language_model.layers.0.mlp.up_proj.lora_A.weight",
            "model.action_time_mlp_in.lora_B.weight",
            "model.state_proj.weight",
        ],
    },
    Case {
        fixture: "smolvla-seed1",
        targets: Some(&["*.lm_expert.*.q_proj", "*.lm_expert.*.v_proj", "state_proj", "action_time_mlp_in"]),
        saved: &["action_out_proj"],
        sample,
        names: &[
            "model.vlm_with_expert.lm_expert.layers.1.self_attn.v_proj.lora_B.weight",
            "model.state_proj.lora_A.weight",
            "model.action_out_proj.weight",
            "model.vlm_with_expert.vlm.model.vision_model.encoder.layers.0.mlp.fc1.lora_A.weight",
        ],
    },
    Case {
        fixture: "groot-seed1",
        targets: None,
        saved: &["action_decoder", "action_encoder.W1", "vlln"],
        sample: sample_of_groot,
        names: &[
            "action_head.model.transformer_blocks.0.attn1.to_out.0.lora_A.weight",
            "action_head.action_decoder.layer2.W",
            "action_head.vlln.weight",
            "backbone.model.model.language_model.layers.0.self_attn.q_proj.lora_B.weight",
            "backbone.model.model.visual.blocks.0.attn.qkv.lora_A.weight",
        ],
    },
    Case {
        fixture: "groot-n1_6-seed1",
        targets: Some(&["*.transformer_blocks.*.to_q", "*.transformer_blocks.*.to_v"]),
        saved: &["state_encoder"],
        sample: sample_of_groot,
        names: &[
            "action_head.model.transformer_blocks.1.attn1.to_q.lora_A.weight",
            "action_head.state_encoder.layer1.W",
        ],
    },
    Case {
        fixture: "xvla-joint-seed1",
        targets: None,
        saved: &["soft_prompt_hub", "action_decoder"],
        sample: xvla_tests::sample,
        names: &[
            "model.transformer.blocks.0.attn.qkv.lora_A.weight",
            "model.transformer.soft_prompt_hub.weight",
            "model.transformer.action_decoder.fc.weight",
            "model.vlm.language_model.encoder.layers.0.self_attn.q_proj.lora_B.weight",
        ],
    },
];

fn sample_of_groot(folder: &Path, _: &PolicyModel, number: i64) -> Sample {
    groot_tests::sample(folder, number as usize)
}

fn config(name: &str) -> Value {
    serde_json::from_str(&std::fs::read_to_string(fixture(name).join("config.json")).unwrap()).unwrap()
}

fn owned(names: &[&str]) -> Vec<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

impl Case {
    fn lora(&self) -> Lora {
        let (target_modules, modules_to_save) = (self.targets.map(owned), owned(self.saved));
        Lora { r: Some(2), alpha: Some(6.0), target_modules, modules_to_save, ..Lora::default() }
    }
}

impl Adapted {
    /// Puts adapters beside the maps of a fixture, as these say of its foundation and of its tower.
    fn new(folder: &Path, [of_foundation, of_tower]: [&Lora; 2]) -> Adapted {
        let config: Value =
            serde_json::from_str(&std::fs::read_to_string(folder.join("config.json")).unwrap()).unwrap();
        let model = ModelConfig::from_hf(&config).unwrap();
        let store = |specs: Vec<ParamSpec>, key: &'static str, lora: &Lora| {
            let part = Part { lora: Some(lora.clone()), ..Part::default() };
            let specs = trained(specs, &model.tree, |_| (key, &part)).unwrap();
            let params = ParamStore::new(specs, Kind::Float, Device::Cpu);
            params.init_random(5);
            load_weights(&params, folder).unwrap();
            Rc::new(params)
        };
        let params = store(model.foundation.specs(), "model.foundation", of_foundation);
        let of_tower = store(model.towers.specs(), "model.image_encoder", of_tower);
        Adapted { model, params, of_tower }
    }

    /// Gives the tower's adapters values that are not nothing.
    fn change_tower(&self) {
        for id in self.of_tower.ids().filter(|id| self.of_tower.spec(*id).name.ends_with(ADAPTER_PARTS[1])) {
            let shape = self.of_tower.spec(id).shape.clone();
            let values = Tensor::arange(shape.iter().product::<i64>(), (Kind::Float, Device::Cpu)).sin() * 0.1;
            self.of_tower.set(id, &values.view(shape.as_slice()));
        }
    }

    fn policy(&self) -> PolicyModel {
        let robot = self.model.foundation.as_policy().unwrap();
        let input = self.model.foundation.inputs()[0].clone();
        let family = self.model.towers.get(input.tower).unwrap().clone();
        let tower = OpenTower {
            tower: input.tower,
            model: family.build(&self.of_tower, Policy::Keep),
            family,
            params: self.of_tower.clone(),
            placeholders: input.placeholders,
        };
        PolicyModel {
            acting: robot.acting(&self.params),
            columns: self.model.foundation.columns().into(),
            chunk: robot.chunk(),
            continues_chunks: robot.continues_chunks(),
            towers: vec![tower],
        }
    }

    /// Trains the foundation's adapters on a sample, and returns the loss before each step and that after the last.
    fn train(&self, sample: &Sample, [actions, weights]: [Tensor; 2]) -> Vec<f64> {
        let policy = self.policy();
        let (observed, features) = (policy.columns(sample).unwrap(), policy.features(sample).unwrap());
        let columns = self.model.foundation.columns();
        let tensor = |(at, own): (usize, &Tensor)| match columns[at].name {
            "actions" => actions.shallow_clone(),
            "action_weights" => weights.shallow_clone(),
            _ => own.shallow_clone(),
        };
        let tensors = observed.tensors().iter().enumerate().map(tensor).collect();
        let batch = MicroBatch {
            columns: Columns::new(&policy.columns, tensors),
            cu_seqlens: vec![0, sample.input_ids.len()],
            samples: [SampleRow { num_targets: 1, ..SampleRow::new(&sample.meta, NoisePurpose::Training) }].into(),
            loss_scale: 1.0 / weights.sum(Kind::Double).double_value(&[]),
            num_features: vec![features[0].size()[0]],
            feature_grads: false,
            constant_features: Default::default(),
            row: None,
            shared_features: Vec::new(),
            past: None,
            evaluates: false,
        };
        let model = self.model.foundation.build(&self.params, Policy::Keep);
        let mut losses = Vec::new();
        for step in 0..=NUM_STEPS {
            let made = model.record(&batch);
            let values = features.iter().map(Tensor::shallow_clone);
            let inputs = made.features.iter().flatten().copied().zip(values).collect();
            let mut run = Execution::new(made.tape, self.params.clone(), inputs);
            run.forward().unwrap();
            let slot = made.loss.unwrap();
            losses.push(run.value(slot).double_value(&[]));
            if step == NUM_STEPS {
                break;
            }
            run.seed(slot, Tensor::from(1f64));
            let mut grads = self.params.new_grad();
            run.backward(Some(&mut grads)).unwrap();
            let rate = STEP / grads.flat().norm().double_value(&[]);
            for id in self.params.trained_ids() {
                self.params.set(id, &(self.params.value(id) - grads.view(id) * rate));
            }
        }
        losses
    }

    /// Writes a folder of PEFT's, as a run does.
    fn save(&self, to: &Path) {
        let stores = [&*self.params, &*self.of_tower];
        let all = stores.iter().flat_map(|params| params.ids().map(|id| params.spec(id).clone()));
        let (specs, tree) = (all.collect::<Vec<ParamSpec>>(), self.model.tree.clone());
        let config = Some(adapter_config(&specs, &tree, &AdapterSettings::default()).to_string());
        let modules_to_save = modules_to_save(specs.iter(), &tree);
        let file = AdapterFile { config, modules_to_save, name: AdapterFile::name(0, 1), tree };
        save_adapter(&stores, &file, to).unwrap();
    }
}

/// Returns the largest difference as a share of the largest number.
fn off(found: &[f32], expected: &[f32]) -> f64 {
    let [found, expected] = [found, expected].map(Tensor::from_slice);
    ((found - &expected).abs().max() / expected.abs().max()).double_value(&[])
}

/// Returns a sample's actions and how much each number of them counts.
fn learned(folder: &Path, number: i64) -> [Tensor; 2] {
    let actions = tensor(folder, "inputs.safetensors", "actions").get(number).to_kind(Kind::Float).contiguous();
    let all = Tensor::read_safetensors(folder.join("inputs.safetensors")).unwrap();
    let weights = all.iter().find(|(name, _)| name == "weights").map(|(_, weights)| weights.get(number));
    let weights = weights.unwrap_or_else(|| Tensor::ones_like(&actions));
    [actions, weights.to_kind(Kind::Float).contiguous()]
}

/// Maps that tell a robot from others have no adapters in some policies, and targets may leave them out.
#[test]
fn maps_of_a_robot_that_adapters_leave_as_they_are_are_said() {
    let said_of = |config: &Value, lora: Option<Lora>| {
        untrained_maps(&Part { lora, ..Part::default() }, &ModelConfig::from_hf(config).unwrap())
    };
    let said = |name: &str, lora: Option<Lora>| said_of(&config(name), lora);
    let all = || Some(Lora::default());
    let saved = |names: &[&str]| Some(Lora { modules_to_save: owned(names), ..Lora::default() });
    let groot = ["state_encoder", "action_encoder", "action_decoder"];
    for (name, maps) in
        [("groot-seed1", groot), ("xvla-joint-seed1", ["soft_prompt_hub", "action_encoder", "action_decoder"])]
    {
        let note = said(name, all()).unwrap();
        assert!(note.contains(&format!("modules_to_save: [{}]", maps.join(", "))), "{note}");
        assert_eq!((said(name, None), said(name, saved(&maps))), (None, None), "{name}");
    }
    assert!(said("groot-seed1", saved(&groot[..1])).unwrap().contains("[action_encoder, action_decoder]"));
    assert_eq!(said("pi05-seed1", all()), None, "all maps have adapters");
    let attention = || Some(Lora { target_modules: Some(owned(&["q_proj", "v_proj"])), ..Lora::default() });
    assert!(said("pi05-seed1", attention()).unwrap().contains("[action_in_proj, action_out_proj]"));
    assert!(said("pi0-seed1", attention()).unwrap().contains("[state_proj, action_in_proj, action_out_proj]"));
    let mut frozen = config("groot-seed1");
    frozen["tune_projector"] = false.into();
    assert_eq!(said_of(&frozen, all()), None, "the config itself freezes them");
}

/// lerobot says in a policy's config whether its folder has adapters.
#[test]
fn a_folder_of_adapters_has_the_config_of_its_policy() {
    let names = ["pi05-seed1", "pi0-seed1", "fast-seed1", "smolvla-seed1", "xvla-joint-seed1"];
    let mut sizes = config("groot-seed1");
    sizes.as_object_mut().unwrap().remove("model_type");
    let groot = json!({"type": "groot", "chunk_size": 5, "max_state_dim": 5, "max_action_dim": 6, "sizes": sizes});
    for mut config in names.map(config).into_iter().chain([groot, json!({"type": "fastwam"})]) {
        let specs = |config: &Value| {
            let specs = ModelConfig::from_hf(config).unwrap_or_else(|error| panic!("{config}: {error}")).specs();
            specs.into_iter().map(|spec| (spec.name, spec.shape)).collect::<Vec<_>>()
        };
        let plain = specs(&config);
        config["use_peft"] = true.into();
        assert!(specs(&config) == plain, "{}", config["type"]);
        config["use_peft"] = "yes".into();
        assert!(ModelConfig::from_hf(&config).unwrap_err().to_string().contains("use_peft"));
    }
}

#[test]
fn adapters_of_every_policy_learn_are_saved_gone_on_from_and_merged() {
    for case in CASES {
        let (name, folder) = (case.fixture, fixture(case.fixture));
        let of_tower = Lora { r: Some(3), alpha: Some(3.0), ..Lora::default() };
        let adapted = Adapted::new(&folder, [&case.lora(), &of_tower]);
        let plain = PolicyModel::open(&folder, Device::Cpu, Precision::Float32).unwrap();
        let sample = (case.sample)(&folder, &plain, 0);
        let (noise, steps) = (plain.noise(7), plain.chunk().num_steps as usize);
        let act = |policy: &PolicyModel| policy.act_from(&sample, &noise, steps).unwrap();
        let before = act(&plain);
        assert!(off(&act(&adapted.policy()), &before) < 1e-6, "{name}: adapters start at nothing");

        adapted.change_tower();
        let frozen = |params: &ParamStore| {
            let ids = params.ids().filter(|id| params.spec(*id).role == Role::Frozen);
            ids.map(|id| params.value(id).copy()).collect::<Vec<Tensor>>()
        };
        let base = frozen(&adapted.params);
        let losses = adapted.train(&sample, learned(&folder, 0));
        assert!(losses.windows(2).all(|two| two[1] < two[0]), "{name}: {losses:?}");
        assert!(frozen(&adapted.params) == base, "{name}: what is frozen stays");
        let own = act(&adapted.policy());
        assert!(off(&own, &before) > 1e-4, "{name}: adapters change actions");

        let dir = tempfile::tempdir().unwrap();
        adapted.save(dir.path());
        let file = TensorFile::open(&dir.path().join("adapter_model.safetensors")).unwrap();
        for tensor in case.names {
            let known: Vec<&String> = file.tensors().keys().collect();
            assert!(file.tensors().contains_key(&format!("base_model.model.{tensor}")), "{name}: {tensor}, {known:?}");
        }

        // As a run goes on from them.
        let from = Lora { adapter: Some(Source::new(dir.path().display().to_string())), ..Lora::default() };
        let again = Adapted::new(&folder, [&from, &from]);
        let opened = AdapterFolder::open(dir.path()).unwrap();
        for params in [&again.params, &again.of_tower] {
            load_adapter(params, &opened, &again.model.tree, |_| true).unwrap();
        }
        assert_eq!(act(&again.policy()), own, "{name}: as they were saved");

        // As they are served, and exported.
        let adapters = (folder.as_path(), Some(dir.path()));
        let served = PolicyModel::open_adapted(&folder, adapters, Device::Cpu, Precision::Float32).unwrap();
        assert!(off(&act(&served), &own) < 1e-5, "{name}: added to their base");
        let (checkpoint, out) = (Checkpoint::open(&folder).unwrap(), tempfile::tempdir().unwrap());
        let adapters = Adapters::open(dir.path(), &adapted.model, &checkpoint).unwrap();
        let rename = |name: &str| Some(name.to_owned());
        let how = Rewrite { dtype: None, float32: &[], max_shard_size: u64::MAX, rename: &rename, stem: "model" };
        rewrite(&checkpoint, Some(&adapters), out.path(), &how).unwrap();
        std::fs::copy(folder.join("config.json"), out.path().join("config.json")).unwrap();
        let merged = PolicyModel::open(out.path(), Device::Cpu, Precision::Float32).unwrap();
        assert!(off(&act(&merged), &own) < 1e-5, "{name}: in files");
        [&adapted.params, &adapted.of_tower].into_iter().for_each(|params| merge_adapter(params));
        assert!(off(&act(&adapted.policy()), &own) < 1e-5, "{name}: in parameters");
    }
}
