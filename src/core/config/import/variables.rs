//! Variables of the environment that programs read: the number of their processes, the name of their config, sizes of pictures.

use super::shell::Word;

/// Variables of torchtitan's `run_train.sh`: its config, and the number of its processes.
pub(super) const TORCHTITAN: [&str; 2] = ["CONFIG_FILE", "NGPU"];

/// Variables of ms-swift's commands that change what is trained.
pub(super) const MS_SWIFT: [&str; 28] = [
    "NPROC_PER_NODE",
    "NNODES",
    "USE_HF",
    "MAX_PIXELS",
    "MIN_PIXELS",
    "IMAGE_MAX_TOKEN_NUM",
    "IMAGE_MIN_TOKEN_NUM",
    "VIDEO_MAX_PIXELS",
    "VIDEO_MIN_PIXELS",
    "VIDEO_TOTAL_PIXELS",
    "VIDEO_MAX_TOKEN_NUM",
    "VIDEO_MIN_TOKEN_NUM",
    "FPS",
    "FPS_MAX_FRAMES",
    "FPS_MIN_FRAMES",
    "USE_AUDIO_IN_VIDEO",
    "ENABLE_AUDIO_OUTPUT",
    // Those of other families, which are told.
    "MAX_NUM",
    "INPUT_SIZE",
    "MAX_SLICE_NUMS",
    "VIDEO_MAX_SLICE_NUMS",
    "MAX_NUM_FRAMES",
    "NUM_FRAMES",
    "NFRAMES",
    "VIDEO_SEGMENTS",
    "HD_NUM",
    "REASONING_EFFORT",
    "THINKING_MODE",
];

/// Returns the variables that a command reads, also where another program starts it (`bash`, `nohup`, `srun`); nothing where the program
/// is another.
pub(super) fn of(words: &[Word]) -> &'static [&'static str] {
    let is_of_swift = |text: &str| text.contains("swift/cli/") || text.starts_with("swift.cli.");
    let calls = |program: &str| words.iter().any(|word| word.text.rsplit('/').next() == Some(program));
    match () {
        () if calls("run_train.sh") => &TORCHTITAN,
        () if calls("swift") || words.iter().any(|word| is_of_swift(&word.text)) => &MS_SWIFT,
        () => &[],
    }
}
