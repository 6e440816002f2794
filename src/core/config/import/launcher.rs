//! What a launcher's options say, accelerate's and torchrun's: how many processes there are, and how they share the model.

use serde_json::Value;

use super::sheet::Sheet;

const ZERO: &str = "pools.foundation.zero";
/// Keys that say how many processes there are.
const PROCESSES: [&str; 3] = ["num_processes", "nproc_per_node", "nnodes"];

impl Sheet {
    /// Returns how many devices have samples of their own, where a launcher's options or axolotl's layout tell.
    pub fn devices(&self) -> Option<f64> {
        if PROCESSES.iter().any(|key| self.is_unsaid(key)) {
            return None;
        }
        let processes = self.number("nproc_per_node").map(|own| own * self.number("nnodes").unwrap_or(1.0));
        let sizes = ["dp_replicate_size", "dp_shard_size"].into_iter().filter_map(|key| self.number(key));
        self.number("num_processes").or(processes).or(sizes.reduce(|one, other| one * other)).filter(|it| *it >= 1.0)
    }

    /// Translates the options of accelerate's launcher and torchrun, also where `accelerate launch` is given a file of them.
    pub fn launcher(&mut self) {
        for key in ["accelerate_config", "config_file"] {
            let name = self.text(key).unwrap_or_default().to_lowercase();
            // The words of `trl`, and of the examples' files.
            let others = [("fsdp", 3), ("multi_gpu", 0), ("single_gpu", 0)];
            match others.into_iter().find(|(part, _)| name.contains(part)) {
                Some((_, level)) => self.with(key, ZERO, |_| Ok(level.into())),
                None => self.deepspeed(key),
            }
        }
        if let Some(devices) = self.devices() {
            self.set("pools.foundation.replicas", devices as u64);
        }
        PROCESSES.iter().for_each(|key| self.arrived(key, "pools.foundation.replicas"));
        self.deepspeed("deepspeed");
        self.settled(
            "`loongforge launch` places processes on machines",
            &[
                "dynamo_backend",
                "gpu_ids",
                "machine_rank",
                "main_process_ip",
                "main_process_port",
                "master_addr",
                "master_port",
                "mixed_precision",
                "multi_gpu",
                "node_rank",
                "num_machines",
                "rdzv_backend",
                "rdzv_endpoint",
                "rdzv_id",
                "standalone",
            ],
        );
    }

    /// Returns the text of a key.
    pub fn text(&self, key: &str) -> Option<String> {
        self.get(key).and_then(Value::as_str).map(str::to_owned)
    }
}
