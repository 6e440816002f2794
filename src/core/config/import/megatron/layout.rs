//! Parallel layout, and what launchers say of it.

use serde_json::Value;

use crate::config::import::sheet::Sheet;
use crate::config::import::trainer::OVERLAP;

/// Keys that say how many processes there are, and how a model is split over them.
const PROCESSES: [&str; 5] =
    ["nproc_per_node", "nnodes", "tensor_model_parallel_size", "pipeline_model_parallel_size", "context_parallel_size"];

/// Returns the data parallelism, which is what is left of all processes; `None`: the script does not tell.
pub(super) fn replicas(sheet: &Sheet) -> Option<f64> {
    if PROCESSES.iter().any(|key| sheet.is_unsaid(key)) {
        return None;
    }
    let world = sheet.number("nproc_per_node")? * sheet.number("nnodes").unwrap_or(1.0);
    let inner: f64 = PROCESSES[2..].iter().map(|key| sheet.number(key).unwrap_or(1.0)).product();
    Some(world / inner).filter(|it| *it >= 1.0 && it.fract() == 0.0)
}

/// Translates how many layers a virtual stage has into the number of a rank's stages. The options of the model, which are read later,
/// say how many layers there are.
pub(super) fn virtual_stages(sheet: &mut Sheet) {
    let key = "num_layers_per_virtual_pipeline_stage";
    let numbers = ["num_layers", "pipeline_model_parallel_size", key].map(|key| sheet.number(key));
    let stages = match numbers {
        [Some(layers), Some(ranks), Some(of_stage)] => Some(layers / ranks / of_stage),
        _ => None,
    };
    let stages = stages.filter(|it| *it >= 1.0 && it.fract() == 0.0).map(|it| Value::from(it as u64));
    sheet.with(key, "pools.foundation.virtual_stages", |_| {
        stages.ok_or("set pools.foundation.virtual_stages, which counts stages")
    });
}

/// Translates the options of parallelism; data parallelism is what is left of all processes.
pub(super) fn read(sheet: &mut Sheet) {
    processes(sheet);
    split(sheet);
    zero(sheet);
    overlap(sheet);
    launch(sheet);
    sheet.settled("there is no Python garbage collection", &["manual_gc", "manual_gc_interval"]);
    sheet.settled("libtorch's allocator frees memory", &["empty_unused_memory_level"]);
}

/// Translates how many processes there are into replicas.
fn processes(sheet: &mut Sheet) {
    if PROCESSES.iter().any(|key| sheet.is_unsaid(key)) {
        sheet.note(
            "the script does not give the number of processes or how the model is split among them: set \
             pools.foundation.replicas to the number of processes / tensor, pipeline and context parallelism",
        );
    } else if let Some(replicas) = replicas(sheet) {
        sheet.set("pools.foundation.replicas", replicas as u64);
        ["nproc_per_node", "nnodes"].iter().for_each(|key| {
            sheet.arrived(key, "pools.foundation.replicas (processes / tensor, pipeline and context parallelism)")
        });
    }
}

/// Translates how a model is split among processes.
fn split(sheet: &mut Sheet) {
    let is_split = sheet.number("tensor_model_parallel_size").is_some_and(|size| size > 1.0);
    sheet.copy_all(&[
        ("tensor_model_parallel_size", "pools.foundation.tensor_parallel"),
        ("pipeline_model_parallel_size", "pools.foundation.pipeline_parallel"),
        ("context_parallel_size", "pools.foundation.context_parallel"),
        ("expert_model_parallel_size", "pools.foundation.expert_parallel"),
        ("num_virtual_stages_per_pipeline_rank", "pools.foundation.virtual_stages"),
    ]);
    match is_split {
        true => sheet.copy("sequence_parallel", "pools.foundation.sequence_parallel"),
        false => sheet.settled("it has no effect without tensor parallelism", &["sequence_parallel"]),
    }
    sheet.missing(
        "layers are assigned to stages by their cost",
        &["custom_pipeline_layers", "custom_virtual_pipeline_layers", "pipeline_model_parallel_layout"],
    );
    if sheet.number("expert_tensor_parallel_size") == Some(1.0) {
        sheet.settled("pools.foundation.expert_parallel distributes experts", &["expert_tensor_parallel_size"]);
    }
    sheet
        .missing("pools.foundation.tensor_parallel splits experts like other layers", &["expert_tensor_parallel_size"]);
    sheet.with("context_parallel_ulysses_degree", "pools.foundation.context_attention", |value| match value.as_f64() {
        Some(1.0) => Ok("ring".into()),
        _ => Err("pools.foundation.context_attention: ulysses uses all context-parallel ranks"),
    });
}

/// Translates what replicas hold a share of.
fn zero(sheet: &mut Sheet) {
    let sharded =
        sheet.is("data_parallel_sharding_strategy", "optim_grads_params") || sheet.is("distributed_strategy", "fsdp");
    if sharded {
        sheet.set("pools.foundation.zero", 3);
    } else if sheet.is("data_parallel_sharding_strategy", "optim_grads") {
        sheet.set("pools.foundation.zero", 2);
    } else if sheet.is_true("use_distributed_optimizer") || sheet.is("distributed_strategy", "ddp_zero1") {
        sheet.set("pools.foundation.zero", 1);
    }
    for key in
        ["use_distributed_optimizer", "data_parallel_sharding_strategy", "use_megatron_fsdp", "distributed_strategy"]
    {
        sheet.arrived(key, "pools.foundation.zero");
    }
}

/// Settles when processes communicate, and through which buffers.
fn overlap(sheet: &mut Sheet) {
    sheet.settled(
        OVERLAP,
        &[
            "ddp_find_unused_parameters",
            "ddp_gradient_as_bucket_view",
            "ddp_num_buckets",
            "ddp_static_graph",
            "disable_turn_off_bucketing",
            "enable_experimental",
            "fsdp_backward_prefetch_distance",
            "fsdp_cast_forward_inputs",
            "fsdp_double_buffer",
            "fsdp_forward_prefetch_distance",
            "fsdp_manual_registration",
            "fsdp_original_param_dtype",
            "fsdp_reduce_dtype",
            "fsdp_wrap_modules",
            "init_model_with_meta_device",
            "megatron_fsdp_grad_comm_dtype",
            "megatron_fsdp_main_grads_dtype",
            "no_dynamo_optimize_ddp",
            "overlap_grad_reduce",
            "overlap_p2p_communication",
            "overlap_param_gather",
            "suggested_communication_unit_size",
            "tp_comm_overlap",
            "tp_comm_overlap_bootstrap_backend",
            "use_nccl_ub",
        ],
    );
}

/// Settles how processes start.
fn launch(sheet: &mut Sheet) {
    let launch = "`loongforge launch` places processes on machines";
    sheet.settled(
        launch,
        &[
            "disable_gloo_process_groups",
            "distributed_backend",
            "distributed_config_file",
            "log_dir",
            "master_addr",
            "master_port",
            "nnodes",
            "node_rank",
            "nproc_per_node",
            "rdzv_backend",
            "rdzv_endpoint",
            "rdzv_id",
            "redirects",
            "standalone",
            "tee",
        ],
    );
}
