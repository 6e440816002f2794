//! A config of DeepSpeed, of which other trainers' configs name the file or hold the section.

use std::path::Path;

use serde_json::{Value, json};

use super::sheet::Sheet;
use super::trainer::FROZEN;
use crate::files;

const ZERO: &str = "pools.foundation.zero";
const OFFLOAD: &str = "train.optimizer.offload";
const FSDP_OFFLOAD: &str =
    "FSDP's offload of trained weights has no counterpart: train.optimizer.offload offloads the optimizer's state";

/// The settings that the importer reads of such a config.
#[derive(Default)]
struct Found {
    /// The stage of ZeRO.
    level: Option<u64>,
    /// `OFFLOAD`, where the optimizer's state is offloaded.
    offload: Option<Value>,
    /// True if weights in use are offloaded too.
    offloads_weights: bool,
}

impl Sheet {
    /// Translates FSDP, which shards weights as ZeRO does: by 2 it keeps them whole between forward and backward.
    pub fn fsdp(&mut self) {
        const FSDP: [&str; 3] = ["fsdp", "fsdp_config", "fsdp_version"];
        let is_off = |value: &Value| *value == Value::Bool(false) || value.as_str() == Some("");
        if FSDP.iter().all(|key| self.get(key).is_none_or(is_off)) {
            return self.settled("it is off", &FSDP);
        }
        let words = self.get("fsdp").map(Value::to_string).unwrap_or_default();
        let config = self.get("fsdp_config").cloned().unwrap_or_default();
        let keeps_weights = words.contains("shard_grad_op") || config["reshard_after_forward"] == false;
        self.set(ZERO, if keeps_weights { 2 } else { 3 });
        let offloads = ["offload_params", "fsdp_offload_params"].iter().any(|key| config[key] == true);
        if words.contains("offload") || offloads {
            self.note(FSDP_OFFLOAD);
        }
        FSDP.iter().for_each(|key| self.arrived(key, ZERO));
    }

    /// Translates FSDP's offload, which `key` turns on.
    pub fn fsdp_offload(&mut self, key: &str) {
        if self.is_true(key) {
            self.set(&format!("{OFFLOAD}.to"), "cpu");
            self.note(FSDP_OFFLOAD);
            self.arrived(key, OFFLOAD);
        }
        self.settled("it is off", &[key]);
    }

    /// Reads the config of DeepSpeed under `key`: the section, a JSON file that is here, or a file that is not here and whose name tells
    /// what is in it, as those of the trainers' examples do (`ds_z3_offload_config.json`).
    pub fn deepspeed(&mut self, key: &str) {
        let Some(value) = self.get(key).cloned() else { return };
        let file = value.as_str().and_then(|path| files::read_text(Path::new(path)).ok());
        let section: Option<Value> = file.and_then(|text| serde_json::from_str(&text).ok());
        let found = match section.as_ref().or(value.is_object().then_some(&value)) {
            Some(section) => of_section(section),
            None => of_name(&value.as_str().unwrap_or_default().to_lowercase()),
        };
        let Some(level) = found.level else {
            return self.missing("pools.foundation.zero must be a level from 0 to 3", &[key]);
        };
        self.set(ZERO, level);
        let mut arrived = ZERO.to_owned();
        if let Some(offload) = found.offload {
            self.set(OFFLOAD, offload);
            arrived = format!("{ZERO}, {OFFLOAD}");
        }
        if found.offloads_weights {
            self.note(
                "offload_param has no counterpart for trained weights: memory.weight_budget offloads frozen ones",
            );
        }
        self.arrived(key, &arrived);
    }

    /// Lowers level 3 to 2 beside frozen weights of 4 or 8 bits, which each replica holds whole here. To be called when all keys are read.
    pub fn keep_rounded_whole(&mut self) {
        if self.has_set(FROZEN) && self.set_number(ZERO) == Some(3.0) {
            self.set(ZERO, 2);
            self.note(
                "the original also shares frozen weights of 4 or 8 bits among the devices; here each replica holds them \
                 whole: pools.foundation.zero is 2 in place of 3",
            );
        }
    }
}

fn of_section(section: &Value) -> Found {
    let zero = &section["zero_optimization"];
    let is_on = |device: &Value| !matches!(device.as_str(), None | Some("none"));
    let optimizer = &zero["offload_optimizer"];
    let ratio = optimizer["ratio"].as_f64();
    // The key of old versions, which take it for `device: cpu`.
    let is_offloaded = is_on(&optimizer["device"]) || zero["cpu_offload"] == true;
    let offload = (is_offloaded && ratio != Some(0.0)).then(|| {
        let mut offload = json!({ "to": "cpu" });
        if optimizer["device"] == "nvme" {
            offload = json!({ "to": "disk", "path": optimizer["nvme_path"] });
        }
        if let Some(ratio) = ratio {
            offload["fraction"] = ratio.into();
        }
        offload
    });
    // ZeRO is off where nothing is said of it.
    let level = zero["stage"].as_u64().or(zero.is_null().then_some(0)).filter(|level| *level <= 3);
    let offloads_weights = is_on(&zero["offload_param"]["device"]) || zero["cpu_offload_params"] == true;
    Found { level, offload, offloads_weights }
}

/// Reads level and offload from a file's name, without its folders.
fn of_name(path: &str) -> Found {
    let name = path.rsplit(['/', '\\']).next().unwrap_or_default();
    let level = (0..=3).rev().find(|level| ["zero", "z"].iter().any(|word| name.contains(&format!("{word}{level}"))));
    let (offloads, weights_alone) = (name.contains("offload"), name.contains("offload_params"));
    let offload = (offloads && !weights_alone).then(|| json!({ "to": "cpu" }));
    Found { level, offload, offloads_weights: offloads && level == Some(3) }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::import;
    use super::super::tests::json_of;

    #[test]
    fn level_3_beside_weights_of_4_bits_becomes_level_2() {
        let of = |more: &str| {
            let text = format!("base_model: a/b\ndatasets: [{{path: x/y}}]\nadapter: qlora\n{more}");
            let imported = import(&text).unwrap();
            let is_told = imported.notes.iter().any(|note| note.contains("pools.foundation.zero is 2 in place of 3"));
            (json_of(&imported)["pools"]["foundation"]["zero"].clone(), is_told)
        };
        assert_eq!(of("load_in_4bit: true\ndeepspeed: deepspeed_configs/zero3_bf16.json\n"), (json!(2), true));
        assert_eq!(of("load_in_4bit: true\ndeepspeed: deepspeed_configs/zero1.json\n"), (json!(1), false));
        let trl = "model_name_or_path: a/b\ndataset_name: x/y\nuse_peft: true\nload_in_4bit: true\n";
        for text in [
            format!("{trl}accelerate_config: zero3\n"),
            format!("{trl}accelerate_config: fsdp2\n"),
            "swift sft --model a/b --dataset c.jsonl --quant_method bnb --quant_bits 4 --deepspeed zero3".to_owned(),
            "llamafactory-cli train --stage sft --model_name_or_path a/b --dataset c --finetuning_type lora \
             --quantization_bit 4 --deepspeed ds_z3_config.json"
                .to_owned(),
        ] {
            assert_eq!(json_of(&import(&text).unwrap())["pools"]["foundation"]["zero"], json!(2), "{text}");
        }
        let lora = "base_model: a/b\ndatasets: [{path: x/y}]\nadapter: lora\ndeepspeed: zero3.json\n";
        assert_eq!(json_of(&import(lora).unwrap())["pools"]["foundation"]["zero"], json!(3));
    }
}
