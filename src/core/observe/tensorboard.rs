//! TensorBoard event files: TFRecord frames around hand-written protobuf (`event.proto`, `summary.proto`).
//! Scalars, text and pictures; not a general protobuf writer.

use std::fs::{self, File};
use std::path::Path;

use super::error::ObserveError;
use super::metrics::StepMetrics;
use super::protobuf::{int, message, string};
use crate::clock::since_epoch;
use crate::files::AppendFile;

/// One event file of a run.
pub struct TensorBoard(AppendFile);

impl TensorBoard {
    /// Creates a new file in `dir`. TensorBoard joins the files of a folder, and drops what earlier ones hold from `first_step` on.
    ///
    /// # Errors
    /// The folder or the file cannot be written.
    pub fn create(dir: &Path, first_step: u64) -> Result<Self, ObserveError> {
        fs::create_dir_all(dir).map_err(|error| ObserveError::write(dir, error))?;
        let now = since_epoch().as_secs_f64();
        let name =
            format!("events.out.tfevents.{:010}.{:09}.{}", now as u64, (now.fract() * 1e9) as u64, std::process::id());
        let path = dir.join(name);
        let file = File::options().append(true).create_new(true).open(&path).and_then(|_| AppendFile::open(&path));
        let mut writer = Self(file.map_err(|error| ObserveError::write(&path, error))?);
        writer.event(now, 0, |event| string(event, 3, b"brain.Event:2"))?;
        if first_step > 0 {
            // SessionLog with status START.
            writer.event(now, first_step, |event| message(event, 7, |log| int(log, 1, 1)))?;
        }
        Ok(writer)
    }

    /// Writes all curves of a step.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn step(&mut self, metrics: &StepMetrics) -> Result<(), ObserveError> {
        self.summary(metrics.step, |summary| {
            for (tag, value) in metrics.scalars() {
                scalar_value(summary, &tag, value);
            }
        })
    }

    /// Writes a number of a step under a tag.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn scalar(&mut self, step: u64, tag: &str, value: f64) -> Result<(), ObserveError> {
        self.summary(step, |summary| scalar_value(summary, tag, value))
    }

    /// Writes a text, which TensorBoard shows as Markdown.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn text(&mut self, step: u64, tag: &str, text: &str) -> Result<(), ObserveError> {
        self.summary(step, |summary| {
            message(summary, 1, |value| {
                string(value, 1, tag.as_bytes());
                message(value, 8, |tensor| {
                    int(tensor, 1, 7); // DT_STRING
                    message(tensor, 2, |_scalar_shape| ());
                    string(tensor, 8, text.as_bytes());
                });
                message(value, 9, |metadata| message(metadata, 1, |plugin| string(plugin, 1, b"text")));
            });
        })
    }

    /// Writes a picture; `png` is encoded, of these sizes.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn image(&mut self, step: u64, tag: &str, width: u32, height: u32, png: &[u8]) -> Result<(), ObserveError> {
        self.summary(step, |summary| {
            message(summary, 1, |value| {
                string(value, 1, tag.as_bytes());
                message(value, 4, |image| {
                    int(image, 1, u64::from(height));
                    int(image, 2, u64::from(width));
                    int(image, 3, 3); // RGB
                    string(image, 4, png);
                });
            });
        })
    }

    fn summary(&mut self, step: u64, fill: impl FnOnce(&mut Vec<u8>)) -> Result<(), ObserveError> {
        self.event(since_epoch().as_secs_f64(), step, |event| message(event, 5, fill))
    }

    fn event(&mut self, wall_time: f64, step: u64, fill: impl FnOnce(&mut Vec<u8>)) -> Result<(), ObserveError> {
        let record = frame(&encode_event(wall_time, step, fill));
        let appended = self.0.append(&record);
        ObserveError::of_append(self.0.path(), appended)
    }
}

fn encode_event(wall_time: f64, step: u64, fill: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let mut event = vec![1 << 3 | 1];
    event.extend(wall_time.to_le_bytes());
    int(&mut event, 2, step);
    fill(&mut event);
    event
}

fn scalar_value(summary: &mut Vec<u8>, tag: &str, number: f64) {
    message(summary, 1, |value| {
        string(value, 1, tag.as_bytes());
        value.push(2 << 3 | 5);
        value.extend((number as f32).to_le_bytes());
    });
}

/// Returns a TFRecord: length, its checksum, bytes, their checksum.
fn frame(bytes: &[u8]) -> Vec<u8> {
    let length = (bytes.len() as u64).to_le_bytes();
    let mut record = Vec::with_capacity(bytes.len() + 16);
    record.extend(length);
    record.extend(masked_crc(&length).to_le_bytes());
    record.extend(bytes);
    record.extend(masked_crc(bytes).to_le_bytes());
    record
}

fn masked_crc(bytes: &[u8]) -> u32 {
    crc32c::crc32c(bytes).rotate_right(15).wrapping_add(0xa282_ead8)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::text::hex;

    /// The expected bytes are those of `tensorboard.compat.proto` 2.21 for the same event.
    #[test]
    fn a_scalar_has_the_bytes_of_protobuf() {
        let event =
            encode_event(1.5, 300, |event| message(event, 5, |summary| scalar_value(summary, "train/loss", 0.25)));
        assert_eq!(hex(event), GOLDEN_EVENT);
    }

    /// The expected record is that of `tensorboard.summary.writer.record_writer` 2.21 for the same bytes.
    #[test]
    fn a_record_has_the_checksums_of_tfrecord() {
        assert_eq!(hex(frame(b"loongforge")), GOLDEN_RECORD);
    }

    #[test]
    fn files_are_whole_records() {
        let folder = tempfile::tempdir().unwrap();
        let mut board = TensorBoard::create(folder.path(), 4).unwrap();
        board.step(&StepMetrics { step: 4, mfu: Some(0.4), ..Default::default() }).unwrap();
        board.text(4, "config", "seed: 1").unwrap();
        board.image(4, "sheet", 2, 1, b"png").unwrap();
        let bytes = fs::read(board.0.path()).unwrap();
        let (mut rest, mut count) = (&bytes[..], 0);
        while !rest.is_empty() {
            let len = u64::from_le_bytes(rest[..8].try_into().unwrap()) as usize;
            assert_eq!(frame(&rest[12..12 + len]), rest[..16 + len]);
            (rest, count) = (&rest[16 + len..], count + 1);
        }
        assert_eq!(count, 5);
    }

    const GOLDEN_EVENT: &str = "09000000000000f83f10ac022a130a110a0a747261696e2f6c6f7373150000803e";
    const GOLDEN_RECORD: &str = "0a00000000000000aea3bf3a6c6f6f6e67666f7267652f3a1835";
}
