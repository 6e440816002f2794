//! Variables before ms-swift's commands: of processes, of the hub, and those that templates of models read, such as sizes of pictures.

use serde_json::Value;

use super::sheet::Sheet;
use super::variables::MS_SWIFT;

/// Translates the variables of pictures and clips. They are to be read before the model's name.
pub(super) fn read(sheet: &mut Sheet) {
    let name = sheet.text("model_name_or_path").unwrap_or_default().to_lowercase();
    // The side of the square of pixels that a token stands for.
    let side = match () {
        () if name.contains("qwen3") => Some(32.0),
        () if name.contains("qwen2") => Some(28.0),
        () => None,
    };
    for (theirs, ours) in [
        ("MAX_PIXELS", "data.image.max_pixels"),
        ("MIN_PIXELS", "data.image.min_pixels"),
        ("FPS", "data.video.fps"),
        ("FPS_MAX_FRAMES", "data.video.max_frames"),
        ("FPS_MIN_FRAMES", "data.video.min_frames"),
    ] {
        sheet.copy_number(theirs, ours);
    }
    for (theirs, ours) in
        [("IMAGE_MAX_TOKEN_NUM", "data.image.max_pixels"), ("IMAGE_MIN_TOKEN_NUM", "data.image.min_pixels")]
    {
        let pixels = sheet.number(theirs).zip(side).map(|(tokens, side)| (tokens * side * side) as u64);
        let why = "set data.image.max_pixels and min_pixels: tokens times the pixels of one";
        sheet.with(theirs, ours, |_| pixels.map(Value::from).ok_or(why));
    }
    if side == Some(28.0) {
        sheet.copy_number("VIDEO_MAX_PIXELS", "data.video.max_pixels");
        sheet.copy_number("VIDEO_MIN_PIXELS", "data.video.min_pixels");
    }
    let frames = "data.video.max_pixels and min_pixels bound each frame; in Qwen3-VL and later all frames together";
    let own = ["VIDEO_MAX_PIXELS", "VIDEO_MIN_PIXELS", "VIDEO_MAX_TOKEN_NUM", "VIDEO_MIN_TOKEN_NUM"];
    sheet.missing(frames, &own);
    sheet.with("USE_AUDIO_IN_VIDEO", "data.video.sound", |value| match (value.as_bool(), value.as_i64()) {
        (Some(true), _) | (_, Some(1)) => Ok(true.into()),
        (Some(false), _) | (_, Some(0)) => Ok(false.into()),
        _ => Err("it must be true or false"),
    });
    sheet.settled("the talker of an omni model is not trained", &["ENABLE_AUDIO_OUTPUT"]);
    sheet.settled("an option of the launcher has it", &MS_SWIFT[..2]);
}
