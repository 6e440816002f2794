//! `loongforge parity --layout`: real processes against one, on committed fixtures.

use std::path::Path;
use std::process::Command;

/// Runs a fixture in real processes; what was said.
fn parity(fixture: &str, layout: &str) -> (bool, String) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/torch/tests/fixtures").join(fixture);
    let mut command = Command::new(env!("CARGO_BIN_EXE_loongforge"));
    let output = command.arg("parity").arg(folder).args(["--layout", layout]).output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.success(), text(&output.stdout) + &text(&output.stderr))
}

fn equals_one_process(fixture: &str, layout: &str, num_processes: usize) {
    let (ok, text) = parity(fixture, layout);
    assert!(ok && text.contains(&format!("({num_processes} processes)")), "{fixture} on {layout}: {text}");
    for quantity in ["losses", "first grad_norm", "later grad_norms", "gradients", "weights"] {
        assert!(text.contains(&format!("  {quantity} ")), "{fixture} on {layout}: {text}");
    }
}

#[test]
fn processes_of_a_dense_model() {
    equals_one_process("qwen3-seed1", "foundation.dp=2,foundation.tp=2,foundation.zero=3", 4);
    equals_one_process("qwen3-seed1", "foundation.cp=2,foundation.context=ulysses", 2);
}

#[test]
fn processes_of_a_mixture_of_experts() {
    equals_one_process("qwen3_moe-seed1", "foundation.dp=2,foundation.ep=2,foundation.tp=2,foundation.sp=1", 4);
    equals_one_process("qwen3_moe-seed1", "foundation.dp=4,foundation.ep=2,foundation.zero=2", 4);
}

#[test]
fn processes_of_a_model_with_eyes() {
    equals_one_process("qwen3_vl-seed1", "foundation.tp=2,foundation.pp=2,encoder.dp=2", 6);
    equals_one_process("qwen2.5_omni-seed1", "vision.tp=2,audio.dp=2,foundation.tp=2", 6);
    equals_one_process("qwen2.5_vl-seed1", "foundation.cp=2,encoder.tp=2,encoder.dp=2,encoder.zero=1", 6);
}

#[test]
fn a_layout_that_does_not_fit_is_named() {
    let (ok, text) = parity("qwen3-seed1", "foundation.tp=3");
    assert!(!ok && text.contains("num_attention_heads") && text.contains("tensor_parallel=3"), "{text}");
    let (ok, text) = parity("qwen3-seed1", "foundation.tp=2,audio.dp=2");
    assert!(!ok && text.contains("the model has no audio tower"), "{text}");
    let (ok, text) = parity("qwen3-seed1", "foundation.xp=2");
    assert!(!ok && text.contains("unknown axis foundation.xp"), "{text}");
}

/// Policies have no columns of tokens, which is what layouts split.
#[test]
fn fixtures_of_policies_are_compared_and_have_no_layouts() {
    let folder = |name: &str| Path::new(env!("CARGO_MANIFEST_DIR")).join("src/torch/tests").join(name);
    let run = |args: &[&str]| {
        let folders = ["policies/pi05-seed1", "florence/florence2-seed1"].map(folder);
        let output = Command::new(env!("CARGO_BIN_EXE_loongforge")).arg("parity").args(folders).args(args).output();
        let output = output.unwrap();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        (output.status.code(), text(&output.stdout) + &text(&output.stderr))
    };
    let (code, text) = run(&[]);
    assert_eq!(code, Some(0), "{text}");
    for row in ["loss", "gradients", "losses alone", "actions", "gradients of both", "scores", "answers"] {
        assert!(text.contains(&format!("  {row} ")), "{row}: {text}");
    }
    let (code, text) = run(&["--bf16"]);
    assert!(code == Some(0) && text.matches("drift: loss ").count() == 2, "{text}");
    let out = tempfile::tempdir().unwrap();
    for args in [["--layout", "foundation.dp=2"], ["--export", out.path().to_str().unwrap()]] {
        let (code, text) = run(&args);
        assert!(code == Some(1) && text.matches(&format!("have no {}", args[0])).count() == 2, "{text}");
    }
}
