//! The C functions of `cpp/`, declared and nothing more.

use std::ffi::{c_char, c_int, c_void};

use tch::Tensor;
use torch_sys::C_tensor;

/// Takes an event of a profile: to whom, its name, nanoseconds, and whether a GPU's kernel it was.
pub(super) type SeeEvent = unsafe extern "C" fn(*mut c_void, *const c_char, i64, bool);

/// One operator argument, laid out as `Arg` in `cpp/shim.cpp`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct RawArg {
    pub tag: i32,
    pub integer: i64,
    pub real: f64,
    pub pointer: *const c_void,
}

/// The numbers of one step of AdamW, laid out as in `cpp/adamw.h`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct AdamWStep {
    pub learning_rate: f64,
    pub betas: [f64; 2],
    pub eps: f64,
    pub weight_decay: f64,
    /// Counted from 1.
    pub number: u64,
    /// Multiplies the gradient.
    pub grad_scale: f64,
    /// True if the gradient is to be zero afterwards.
    pub zero_grad: bool,
}

#[allow(unsafe_code)]
unsafe extern "C" {
    pub(super) fn lf_last_error() -> *const c_char;
    pub(super) fn lf_grad(
        outputs: *const *mut C_tensor,
        grads: *const *mut C_tensor,
        num_outputs: c_int,
        inputs: *const *mut C_tensor,
        sums: *const *mut C_tensor,
        num_inputs: c_int,
        found: *mut *mut C_tensor,
    ) -> c_int;
    pub(super) fn lf_find_op(name: *const c_char, overload: *const c_char) -> *mut c_void;
    pub(super) fn lf_call_op(
        op: *mut c_void,
        args: *const RawArg,
        num_args: c_int,
        outputs: *mut *mut C_tensor,
        max_outputs: c_int,
    ) -> c_int;
    pub(super) fn lf_deterministic();
    #[cfg(test)]
    pub(super) fn lf_arena_bytes(in_use: *mut i64, kept: *mut i64);
    #[cfg(test)]
    pub(super) fn lf_memory_report(at: *mut c_void, bytes: i64);
    pub(super) fn lf_memory_watch_start() -> *mut c_void;
    pub(super) fn lf_memory_watch_current(scope: *mut c_void) -> i64;
    pub(super) fn lf_memory_watch_peak(scope: *mut c_void) -> i64;
    pub(super) fn lf_memory_watch_at_peak(scope: *mut c_void, bytes: *mut i64);
    pub(super) fn lf_memory_purpose(next: c_int) -> c_int;
    pub(super) fn lf_dry_run(on: bool);
    pub(super) fn lf_memory_watch_reset_peak(scope: *mut c_void);
    pub(super) fn lf_memory_watch_stop(scope: *mut c_void);
    pub(super) fn lf_saved_open() -> *mut c_void;
    pub(super) fn lf_saved_close();
    pub(super) fn lf_saved_free(list: *mut c_void);
    pub(super) fn lf_saved_len(list: *mut c_void) -> i64;
    pub(super) fn lf_saved_get(list: *mut c_void, index: i64) -> *mut C_tensor;
    pub(super) fn lf_saved_set(list: *mut c_void, index: i64, tensor: *mut C_tensor);
    pub(super) fn lf_storage(
        tensor: *mut C_tensor,
        address: *mut i64,
        bytes: *mut i64,
        users: *mut i64,
        offset: *mut i64,
    );
    pub(super) fn lf_profile_start(gpu: bool) -> c_int;
    pub(super) fn lf_profile_stop(path: *const c_char, to: *mut c_void, see: Option<SeeEvent>) -> c_int;
    pub(super) fn lf_stream_enter(like: *mut C_tensor) -> c_int;
    pub(super) fn lf_stream_mark(like: *mut C_tensor) -> *mut c_void;
    pub(super) fn lf_stream_await(mark: *mut c_void, like: *mut C_tensor) -> c_int;
    pub(super) fn lf_mark_free(mark: *mut c_void);
    pub(super) fn lf_stream_synchronize(like: *mut C_tensor) -> c_int;
    pub(super) fn lf_store_serve(host: *const c_char, port: c_int, listener: c_int, timeout_ms: i64) -> *mut c_void;
    pub(super) fn lf_store_free(store: *mut c_void);
    pub(super) fn lf_gloo_new(
        path: *const c_char,
        name: *const c_char,
        host: *const c_char,
        rank: c_int,
        world: c_int,
        timeout_ms: i64,
    ) -> *mut c_void;
    pub(super) fn lf_nccl_new(
        options: *mut c_void,
        backend: *mut c_void,
        path: *const c_char,
        name: *const c_char,
        rank: i32,
        world: i32,
        timeout_ms: i64,
    ) -> *mut c_void;
    pub(super) fn lf_group_free(group: *mut c_void);
    #[cfg(test)]
    pub(super) fn lf_ends_within(timeout_ms: i64, thread_ms: i64) -> c_int;
    pub(super) fn lf_interrupt_by(count: *const u32);
    pub(super) fn lf_wait(pending: *mut c_void) -> c_int;
    pub(super) fn lf_all_reduce_sum(group: *mut c_void, tensor: *mut C_tensor) -> *mut c_void;
    pub(super) fn lf_all_reduce_max(group: *mut c_void, tensor: *mut C_tensor) -> *mut c_void;
    pub(super) fn lf_all_gather(group: *mut c_void, output: *mut C_tensor, input: *mut C_tensor) -> *mut c_void;
    pub(super) fn lf_reduce_scatter_sum(group: *mut c_void, output: *mut C_tensor, input: *mut C_tensor)
    -> *mut c_void;
    pub(super) fn lf_all_to_all(
        group: *mut c_void,
        output: *mut C_tensor,
        input: *mut C_tensor,
        taken: *const i64,
        sent: *const i64,
        world: c_int,
    ) -> *mut c_void;
    pub(super) fn lf_broadcast(group: *mut c_void, tensor: *mut C_tensor, root: c_int) -> *mut c_void;
    pub(super) fn lf_send(group: *mut c_void, tensor: *mut C_tensor, to: c_int, tag: c_int) -> *mut c_void;
    pub(super) fn lf_recv(group: *mut c_void, tensor: *mut C_tensor, from: c_int, tag: c_int) -> *mut c_void;
    pub(super) fn lf_norm_rope(
        x: *mut C_tensor,
        weight: *mut C_tensor,
        cos: *mut C_tensor,
        sin: *mut C_tensor,
        parts: i64,
        neighbors: bool,
        eps: f64,
    ) -> *mut C_tensor;
    pub(super) fn lf_gelu_tanh(x: *mut C_tensor) -> *mut C_tensor;
    pub(super) fn lf_modulate(
        x: *mut C_tensor,
        table: *mut C_tensor,
        lens: *const i64,
        rows: *const i64,
        num: i64,
        first: i64,
        eps: f64,
    ) -> *mut C_tensor;
    pub(super) fn lf_gate(
        x: *mut C_tensor,
        table: *mut C_tensor,
        lens: *const i64,
        rows: *const i64,
        num: i64,
        first: i64,
    ) -> *mut C_tensor;
    pub(super) fn lf_join_rows(a: *mut C_tensor, b: *mut C_tensor, order: *mut C_tensor) -> *mut C_tensor;
    pub(super) fn lf_split_rows(
        both: *mut C_tensor,
        order: *mut C_tensor,
        rows: i64,
        outputs: *mut *mut C_tensor,
    ) -> c_int;
    pub(super) fn lf_swiglu(gate: *mut C_tensor, up: *mut C_tensor) -> *mut C_tensor;
    pub(super) fn lf_delta_scan(
        u: *mut C_tensor,
        w: *mut C_tensor,
        keys: *mut C_tensor,
        decay: *mut C_tensor,
        last: *mut C_tensor,
        counts: *const i64,
        num_steps: c_int,
        outputs: *mut *mut C_tensor,
    ) -> c_int;
    pub(super) fn lf_multiply(to: *mut C_tensor, a: *mut C_tensor, b: *mut C_tensor, add: bool) -> c_int;
    pub(super) fn lf_can_tile() -> bool;
    pub(super) fn lf_is_faster_tiled() -> bool;
    pub(super) fn lf_set_tiled(which: i32);
    pub(super) fn lf_can_attend(is_bf16: bool) -> bool;
    pub(super) fn lf_attention(
        q: *mut C_tensor,
        k: *mut C_tensor,
        v: *mut C_tensor,
        ends: *const i64,
        num_ends: i64,
        causal: bool,
        scale: f64,
    ) -> *mut C_tensor;
    pub(super) fn lf_linear(x: *mut C_tensor, weight: *mut C_tensor, bias: *mut C_tensor) -> *mut C_tensor;
    pub(super) fn lf_turn_halves(x: *mut C_tensor, cos: *mut C_tensor, sin: *mut C_tensor) -> *mut C_tensor;
    pub(super) fn lf_reorder_rows(
        x: *mut C_tensor,
        index: *mut C_tensor,
        back: *mut C_tensor,
        counts: *mut C_tensor,
    ) -> *mut C_tensor;
    pub(super) fn lf_embedding(table: *mut C_tensor, ids: *mut C_tensor, padding: i64) -> *mut C_tensor;
    pub(super) fn lf_add_product(sum: *mut C_tensor, a: *mut C_tensor, transpose: bool, b: *mut C_tensor) -> c_int;
    pub(super) fn lf_scan_scores(
        scores: *mut C_tensor,
        labels: *mut C_tensor,
        first: i64,
        greatest: *mut C_tensor,
        sum: *mut C_tensor,
        label_score: *mut C_tensor,
    ) -> c_int;
    pub(super) fn lf_scores_to_gradient(
        scores: *mut C_tensor,
        labels: *mut C_tensor,
        first: i64,
        norm: *mut C_tensor,
        scale: f64,
    ) -> c_int;
    pub(super) fn lf_adamw(
        params: *mut C_tensor,
        rounded: *mut C_tensor,
        grad: *mut C_tensor,
        exp_avg: *mut C_tensor,
        exp_avg_sq: *mut C_tensor,
        step: *const AdamWStep,
    ) -> c_int;
    pub(super) fn lf_adamw_8bit(
        params: *mut C_tensor,
        rounded: *mut C_tensor,
        grad: *mut C_tensor,
        codes: *const *mut C_tensor,
        maxima: *const *mut C_tensor,
        maps: *const *const f32,
        step: *const AdamWStep,
    ) -> c_int;
    pub(super) fn lf_to_nf4(values: *mut C_tensor, packed: *mut C_tensor, maxima: *mut C_tensor) -> c_int;
    pub(super) fn lf_from_nf4(packed: *mut C_tensor, maxima: *mut C_tensor, out: *mut C_tensor) -> c_int;
    pub(super) fn lf_to_int8(values: *mut C_tensor, maxima: *mut C_tensor, out: *mut C_tensor) -> c_int;
    pub(super) fn lf_from_int8(values: *mut C_tensor, maxima: *mut C_tensor, out: *mut C_tensor) -> c_int;
    pub(super) fn lf_sum_of_squares(x: *mut C_tensor) -> f64;
    pub(super) fn lf_resize_storage(tensor: *mut C_tensor, bytes: i64) -> c_int;
    pub(super) fn lf_borrow(
        data: *const c_void,
        shape: *const i64,
        num_dims: c_int,
        scalar_type: i8,
        owner: *mut c_void,
        release: extern "C" fn(*mut c_void),
    ) -> *mut C_tensor;
    pub(super) fn lf_own(tensor: *mut C_tensor) -> i64;
    pub(super) fn lf_barrier(group: *mut c_void) -> *mut c_void;
}

/// Returns the C++ tensor behind a `Tensor`. It is not changed through the pointer's constness: the shim copies handles.
pub(super) fn raw(tensor: &Tensor) -> *mut C_tensor {
    tensor.as_ptr().cast_mut()
}
