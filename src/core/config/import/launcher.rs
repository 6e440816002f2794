//! The options of a launcher, accelerate's or torchrun's: how many processes there are, and how they share the model.

use serde_json::Value;

use super::sheet::Sheet;

const ZERO: &str = "pools.foundation.zero";
/// Keys that say how many processes there are; the last two are those of DeepSpeed's launcher.
const PROCESSES: [&str; 5] = ["num_processes", "nproc_per_node", "nnodes", "num_gpus", "num_nodes"];
/// Keys that say how many processes share the same samples.
const SHARING: [&str; 3] = ["tensor_model_parallel_size", "pipeline_model_parallel_size", "context_parallel_size"];

impl Sheet {
    /// Returns how many devices have samples of their own, where a launcher's options or axolotl's layout tell.
    pub fn devices(&self) -> Option<f64> {
        if PROCESSES.iter().chain(&SHARING).any(|key| self.is_unsaid(key)) {
            return None;
        }
        let of = |own: &str, nodes: &str| Some(self.number(own)? * self.number(nodes).unwrap_or(1.0));
        let processes = of("nproc_per_node", "nnodes").or(of("num_gpus", "num_nodes"));
        let sharing: f64 = SHARING.iter().map(|key| self.number(key).unwrap_or(1.0).max(1.0)).product();
        let processes = self.number("num_processes").or(processes).map(|all| all / sharing);
        let sizes = ["dp_replicate_size", "dp_shard_size"].into_iter().filter_map(|key| self.number(key));
        processes.or(sizes.reduce(|one, other| one * other)).filter(|it| *it >= 1.0 && it.fract() == 0.0)
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
