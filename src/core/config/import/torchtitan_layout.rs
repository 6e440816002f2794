//! Translates torchtitan's layout over devices, its batches, and the precision in which it computes.

use super::sheet::Sheet;
use super::trainer::{OVERLAP, SAVES_MEMORY};

const ZERO: &str = "pools.foundation.zero";

/// Translates layout, batch and precision.
pub(super) fn read(sheet: &mut Sheet) {
    let devices = devices(sheet);
    batch(sheet, devices);
    layout(sheet, devices);
    precision(sheet);
    let tools = ["dynamo_backend", "local_ranks_filter", "redirects", "role", "tee", "log_dir"];
    sheet.settled("`loongforge launch` places processes on machines", &tools);
    sheet.settled_all(OVERLAP, &["comm."]);
    sheet.settled_all("operators are already compiled", &["compile.", "training.compile"]);
    sheet.settled_all("there is no Python garbage collection", &["training.gc_"]);
}

/// Returns how many devices have rows of their own, where a launcher or the layout tells.
fn devices(sheet: &Sheet) -> Option<f64> {
    let degree = |name: &str| sheet.number(&format!("parallelism.{name}_degree")).unwrap_or(1.0).max(1.0);
    let sharing = degree("tensor_parallel") * degree("pipeline_parallel") * degree("context_parallel");
    let launched = sheet.devices().map(|all| all / sharing);
    let shard = sheet.number("parallelism.data_parallel_shard_degree").filter(|size| *size >= 1.0);
    let written = shard.map(|shard| shard * degree("data_parallel_replicate"));
    written.or(launched).filter(|all| *all >= 1.0 && all.fract() == 0.0)
}

/// Translates the rows of a step.
fn batch(sheet: &mut Sheet, devices: Option<f64>) {
    const OURS: &str = "train.global_batch_size";
    const GLOBAL: &str = "training.global_batch_size";
    const LOCAL: &str = "training.local_batch_size";
    if sheet.number(GLOBAL).is_some_and(|rows| rows >= 1.0) {
        sheet.copy_number(GLOBAL, OURS);
        return sheet.settled("packs are accumulated to train.global_batch_size", &[LOCAL]);
    }
    let local = sheet.number(LOCAL).unwrap_or(8.0);
    sheet.set(OURS, (local * devices.unwrap_or(1.0)) as u64);
    if devices.is_none() {
        sheet.note("train.global_batch_size is the batch size of one GPU: multiply it by the number of GPUs");
    }
    sheet.arrived(LOCAL, OURS);
    sheet.settled("it is that of all devices", &[GLOBAL]);
}

fn layout(sheet: &mut Sheet, devices: Option<f64>) {
    let key = |name: &str| format!("parallelism.{name}");
    sheet.launcher();
    match devices {
        Some(devices) => sheet.set("pools.foundation.replicas", devices as u64),
        None => sheet.note(
            "the number of GPUs is not known: set pools.foundation.replicas to it, divided by tensor, pipeline and \
             context parallelism",
        ),
    }
    let (shard, reshard) = (key("data_parallel_shard_degree"), key("fsdp_reshard_after_forward"));
    let is_pipelined = sheet.number(&key("pipeline_parallel_degree")).is_some_and(|size| size > 1.0);
    let level = match () {
        () if sheet.number(&shard) == Some(1.0) => 0,
        // Stages of a pipeline keep their weights by default.
        () if sheet.is(&reshard, "never") || (is_pipelined && !sheet.is(&reshard, "always")) => 2,
        () => 3,
    };
    sheet.set(ZERO, level);
    [&shard, &reshard].into_iter().for_each(|key| sheet.arrived(key, ZERO));
    let replicate = key("data_parallel_replicate_degree");
    if level > 0 && sheet.number(&replicate).is_some_and(|size| size > 1.0) {
        sheet.missing("weights are sharded over all replicas", &[&replicate]);
    }
    sheet.settled("pools.foundation.replicas counts devices", &[&replicate]);
    for (theirs, ours) in [
        ("tensor_parallel_degree", "tensor_parallel"),
        ("pipeline_parallel_degree", "pipeline_parallel"),
        ("context_parallel_degree", "context_parallel"),
        ("expert_parallel_degree", "expert_parallel"),
    ] {
        sheet.copy(&key(theirs), &format!("pools.foundation.{ours}"));
    }
    if sheet.set_number("pools.foundation.tensor_parallel").is_some_and(|size| size > 1.0) {
        // Tensor parallelism has sequence parallelism there.
        sheet.set("pools.foundation.sequence_parallel", true);
    }
    if sheet.number(&key("expert_tensor_parallel_degree")) == Some(1.0) {
        sheet.settled("pools.foundation.expert_parallel distributes experts", &[&key("expert_tensor_parallel_degree")]);
    }
    let experts = "pools.foundation.tensor_parallel splits experts like other layers";
    sheet.missing(experts, &[&key("expert_tensor_parallel_degree")]);
    let is_virtual = sheet.text(&key("pipeline_parallel_schedule")).is_some_and(|name| name.contains("Interleaved"));
    if is_pipelined && is_virtual {
        let why = "set pools.foundation.virtual_stages, the number of stages of each rank";
        sheet.missing(why, &[&key("pipeline_parallel_schedule"), &key("pipeline_parallel_layers_per_stage")]);
    }
    sheet.settled_all("layers are assigned to stages by their cost", &[&key("pipeline_"), &key("module_fqns")]);
    sheet.settled_all(
        OVERLAP,
        &[&key("enable_"), &key("disable_"), &key("context_parallel_"), &key("expert_parallel_")],
    );
}

fn precision(sheet: &mut Sheet) {
    const OURS: &str = "train.precision";
    const RECOMPUTE: &str = "activation_checkpoint.mode";
    let is_whole = sheet.is("training.mixed_precision_param", "float32") && !sheet.is("training.dtype", "bfloat16");
    sheet.set(OURS, if is_whole { "float32" } else { "bf16" });
    sheet.arrived("training.mixed_precision_param", OURS);
    if sheet.is("training.dtype", "bfloat16") {
        sheet.note("weights and optimizer state are bfloat16 there; here master weights are float32");
    }
    sheet.arrived("training.dtype", OURS);
    sheet.settled("train.precision is the precision of what is computed", &["training.mixed_precision_reduce"]);
    sheet.fsdp_offload("training.enable_cpu_offload");
    if sheet.is(RECOMPUTE, "full") {
        sheet.set("model.foundation.recompute", "all");
        sheet.arrived(RECOMPUTE, "model.foundation.recompute");
    }
    sheet.settled_all(SAVES_MEMORY, &["activation_checkpoint."]);
}
