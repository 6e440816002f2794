//! Decodes files of sound: WAV, AIFF, FLAC, MP3, Ogg Vorbis, and AAC in MP4.

use std::cell::Cell;
use std::io::Cursor;
use std::ops::Range;

use symphonia::core::audio::GenericAudioBufferRef;
use symphonia::core::codecs::audio::well_known::*;
use symphonia::core::codecs::audio::{AudioCodecId, AudioCodecParameters, AudioDecoder, AudioDecoderOptions};
use symphonia::core::common::Limit;
use symphonia::core::errors::Error;
use symphonia::core::formats::probe::Hint;
use symphonia::core::formats::{FormatOptions, FormatReader, Track, TrackType};
use symphonia::core::io::{MediaSourceStream, MediaSourceStreamOptions};
use symphonia::core::meta::MetadataOptions;

use super::container::prepared;
use super::pcm::Pcm;
use super::resample::resample;
use super::samples::{MAX_KEPT, Samples};
use super::segment::{Segment, TOLERANCE};
use crate::config::AudioLimits;
use crate::data::cpu::{CpuClock, MAX_DECODE_SECONDS};

/// The most channels that are mixed down to one.
const MAX_CHANNELS: usize = 8;
/// Samples a second of a file.
const RATES: std::ops::RangeInclusive<u32> = 4_000..=192_000;
/// The reason of a file, such as a silent video, that has no track of sound.
pub const NO_SOUND: &str = "has no audio track";
/// The largest sample of a file in floating point, which may be above full scale.
const MAX_LEVEL: f32 = 1000.0;
/// Memory that a tag or a cover picture in a file may take; neither is read.
const MAX_TAG_BYTES: usize = 1 << 20;
/// Memory that the samples of one file may take, in bytes.
const MAX_SOUND_BYTES: usize = 1 << 30;
/// Seconds on a core that a second of sound may take: a hundred times what the slowest codec takes.
const MAX_SECONDS_PER_SECOND: f64 = 0.2;
/// The same of sound that is before a segment.
const MAX_SECONDS_PER_SKIPPED_SECOND: f64 = 0.02;
/// Samples that an encoder of MP3 adds at both ends: other programs count them as part of the file, and they are not decoded.
const MP3_PADDING: u64 = 2304;
/// Packets from one look at the clock to the next.
const PACKETS_PER_LOOK: u64 = 64;

/// Describes a file of sound by its header alone, which may be wrong.
#[derive(Clone, Debug, PartialEq)]
pub struct AudioHeader {
    pub codec: String,
    /// Samples a second of each channel.
    pub rate: Option<u32>,
    pub channels: Option<usize>,
    /// Samples of each channel; `None` where only decoding tells.
    pub num_samples: Option<u64>,
}

impl AudioHeader {
    /// Returns the length in seconds, where the header has it.
    pub fn seconds(&self) -> Option<f64> {
        Some(self.num_samples? as f64 / f64::from(self.rate.filter(|rate| *rate > 0)?))
    }
}

/// Reads what a file says of itself, without decoding it.
///
/// # Errors
/// The reason: no file of sound, or one without sound.
pub fn read_header(bytes: &[u8]) -> Result<AudioHeader, String> {
    let bytes = prepared(bytes)?;
    let format = probe(&bytes)?;
    let (track, params) = sound_of(format.as_ref())?;
    Ok(AudioHeader {
        codec: name(params.codec),
        rate: params.sample_rate,
        channels: params.channels.as_ref().map(|channels| channels.count()),
        num_samples: num_samples(track, params),
    })
}

/// Decodes a segment of a file to one channel, the mean of all its channels, of `rate` samples a second in [-1, 1].
///
/// The first track of sound is taken. What the header claims is held against `limits` before anything is decoded, and
/// what is decoded is counted.
///
/// # Errors
/// The reason, with the codec's name: not a file of sound, corrupt or truncated, of a kind that is not decoded, too long,
/// of too many channels; the segment is not in it.
pub fn decode_sound(bytes: &[u8], rate: u32, limits: &AudioLimits, segment: Segment) -> Result<Samples, String> {
    let bytes = prepared(bytes)?;
    if let Some(pcm) = Pcm::of(&bytes) {
        let samples =
            plain(&pcm, limits, segment).map_err(|reason| format!("{}: {reason}", name(CODEC_ID_PCM_S16LE)))?;
        return resample(samples, pcm.rate, rate);
    }
    let mut format = probe(&bytes)?;
    let (track, params) = sound_of(format.as_ref())?;
    let (track_id, codec, claimed) = (track.id, name(params.codec), num_samples(track, params));
    let of_codec = |reason: String| format!("{codec}: {reason}");
    let is_exact = params.codec == CODEC_ID_FLAC || codec.starts_with("PCM");
    let mut sound = Mono::new(limits, segment);
    sound.padding = if params.codec == CODEC_ID_MP3 { MP3_PADDING } else { 0 };
    if let Some(own) = params.sample_rate {
        let channels = params.channels.as_ref().map_or(1, |channels| channels.count());
        check_kind(own, channels).map_err(of_codec)?;
    }
    if let (Some(num_samples), Some(own)) = (claimed, params.sample_rate) {
        sound.check_length(num_samples, own).map_err(of_codec)?;
        sound.reserve(num_samples, own);
    }
    let header = header(params);
    let is_half = params.codec == CODEC_ID_AAC && params.extra_data.as_deref().is_some_and(has_upper_half);
    let mut decoder = decoder(params, header.as_deref())?;
    let clock = CpuClock::start();
    for number in 1_u64.. {
        let packet = match format.next_packet() {
            Ok(Some(packet)) => packet,
            Ok(None) => break,
            Err(error) => return Err(of_codec(describe(&error))),
        };
        if packet.track_id == track_id {
            let decoded = decoder.decode(&packet).map_err(|error| of_codec(describe(&error)))?;
            sound.push(&decoded).map_err(of_codec)?;
            if sound.is_complete() {
                break;
            }
        }
        if number.is_multiple_of(PACKETS_PER_LOOK) {
            clock.check(max_decode_seconds(limits, segment)).map_err(of_codec)?;
        }
    }
    let found = sound.num_seen;
    if let Some(claimed) = claimed.filter(|&claimed| is_exact && claimed > found && !sound.is_complete()) {
        return Err(of_codec(format!("truncated: {found} samples per channel, but its header says {claimed}")));
    }
    let Some(own) = sound.rate else { return Err(of_codec("has no samples".to_owned())) };
    sound.check_end(own).map_err(of_codec)?;
    if is_half && own < rate {
        return Err(of_codec(format!(
            "its upper frequencies are coded apart (HE-AAC), which is not supported, and the others have only {own} Hz \
             of {rate}; {}",
            convert()
        )));
    }
    if let Some(header) = header {
        LAST_VORBIS.set(Some(Vorbis { header, decoder }));
    }
    resample(sound.samples, own, rate)
}

/// Returns whether the configuration of AAC-LC says, behind what every decoder reads, that the upper half of the frequencies is coded
/// apart (SBR). ISO/IEC 14496-3 §1.6.2.1.
fn has_upper_half(config: &[u8]) -> bool {
    let mut bytes = [0; 16];
    let len = config.len().min(bytes.len());
    bytes[..len].copy_from_slice(&config[..len]);
    let field = |at: u32, len: u32| u128::from_be_bytes(bytes) << at >> (128 - len);
    // A rate may be written out, and a delay behind the second of three flags.
    let flags = if field(5, 4) == 15 { 37 } else { 13 };
    let behind = flags + if field(flags + 1, 1) == 1 { 17 } else { 3 };
    field(0, 5) == 2 && field(behind, 11) == 0x2b7 && field(behind + 11, 5) == 5 && field(behind + 16, 1) == 1
}

/// A decoder of Vorbis with the header of its file. Making its codebooks takes as long as to decode some seconds of sound, and all files
/// of a data set have often the same.
struct Vorbis {
    header: Box<[u8]>,
    decoder: Box<dyn AudioDecoder>,
}

thread_local! {
    /// The decoder of this thread's last file.
    static LAST_VORBIS: Cell<Option<Vorbis>> = const { Cell::new(None) };
}

/// Returns the header that a decoder of Vorbis is made of; `None`: the file has another codec.
fn header(params: &AudioCodecParameters) -> Option<Box<[u8]>> {
    params.extra_data.clone().filter(|_| params.codec == CODEC_ID_VORBIS)
}

/// Reads a segment of a file whose samples are read as they lie.
fn plain(pcm: &Pcm<'_>, limits: &AudioLimits, segment: Segment) -> Result<Samples, String> {
    let mut sound = Mono::new(limits, segment);
    check_kind(pcm.rate, pcm.channels)?;
    sound.check_length(pcm.num_samples(), pcm.rate)?;
    sound.reserve(pcm.num_samples(), pcm.rate);
    let (range, end) = (sound.range(pcm.rate), pcm.num_samples());
    pcm.mean(range.start.min(end) as usize, range.end.min(end) as usize, &mut sound.samples);
    sound.num_seen = end;
    sound.check_end(pcm.rate).map(|()| sound.samples)
}

/// Seconds on a core that a file may take to decode.
pub fn max_decode_seconds(limits: &AudioLimits, segment: Segment) -> f64 {
    MAX_DECODE_SECONDS + limits.max_seconds * MAX_SECONDS_PER_SECOND + segment.start * MAX_SECONDS_PER_SKIPPED_SECOND
}

/// The mean of the channels within the segment, as far as it is decoded.
struct Mono<'a> {
    limits: &'a AudioLimits,
    segment: Segment,
    samples: Samples,
    /// Samples of each channel that were decoded, before the segment too.
    num_seen: u64,
    /// Samples of each channel that a segment may end behind those that are decoded.
    padding: u64,
    rate: Option<u32>,
    /// One packet, channel by channel.
    planes: Vec<Vec<f32>>,
}

impl<'a> Mono<'a> {
    fn new(limits: &'a AudioLimits, segment: Segment) -> Self {
        Self { limits, segment, samples: Samples::empty(), num_seen: 0, padding: 0, rate: None, planes: Vec::new() }
    }

    /// Returns the samples of the segment among all of a file of this rate.
    fn range(&self, rate: u32) -> Range<u64> {
        let sample = |seconds: f64| (seconds * f64::from(rate)).round() as u64;
        sample(self.segment.start)..self.segment.end.map_or(u64::MAX, sample)
    }

    /// Makes room for the segment of a file of so many samples a channel, which its header says and may be wrong.
    fn reserve(&mut self, num_samples: u64, rate: u32) {
        let range = self.range(rate);
        let num_samples = num_samples.min(range.end).saturating_sub(range.start);
        self.samples.reserve_exact(num_samples.min(MAX_KEPT as u64) as usize);
    }

    /// Returns whether the whole segment is decoded.
    fn is_complete(&self) -> bool {
        self.rate.is_some_and(|rate| self.num_seen >= self.range(rate).end)
    }

    /// # Errors
    /// The file ends before the segment.
    fn check_end(&self, rate: u32) -> Result<(), String> {
        let seconds = self.num_seen as f64 / f64::from(rate);
        let Segment { start, end } = self.segment;
        let padding = self.padding as f64 / f64::from(rate);
        match end.filter(|end| *end > seconds + padding.max(TOLERANCE)) {
            Some(end) => Err(format!("lasts {seconds:.3} s, but its segment ends at {end} s")),
            None if self.samples.is_empty() && start > 0.0 => {
                Err(format!("lasts {seconds:.3} s, but its segment begins at {start} s"))
            }
            None if self.samples.is_empty() => Err("has no samples".to_owned()),
            None => Ok(()),
        }
    }

    fn push(&mut self, decoded: &GenericAudioBufferRef<'_>) -> Result<(), String> {
        let (rate, channels) = (decoded.spec().rate(), decoded.num_planes());
        if decoded.frames() == 0 {
            return Ok(());
        }
        check_kind(rate, channels)?;
        if *self.rate.get_or_insert(rate) != rate {
            return Err(format!("its sample rate changes within the file to {rate} Hz"));
        }
        let (range, first) = (self.range(rate), self.num_seen);
        self.num_seen += decoded.frames() as u64;
        self.check_length(self.num_seen, rate)?;
        let place = |sample: u64| sample.clamp(first, self.num_seen) - first;
        let (from, until) = (place(range.start) as usize, place(range.end) as usize);
        if from == until {
            return Ok(());
        }
        // Samples of a channel lie one behind the other, and are converted and added side by side.
        let begin = self.samples.len();
        if channels == 1 && until - from == decoded.frames() {
            self.samples.resize(begin + until, 0.0);
            decoded.copy_to_slice_planar(&mut [&mut self.samples[begin..]]);
        } else {
            decoded.copy_to_vecs_planar(&mut self.planes);
            for (channel, plane) in self.planes.iter().enumerate() {
                match channel {
                    0 => self.samples.extend_from_slice(&plane[from..until]),
                    _ => self.samples[begin..].iter_mut().zip(&plane[from..until]).for_each(|(sum, one)| *sum += one),
                }
            }
            let scale = 1.0 / channels as f32;
            self.samples[begin..].iter_mut().for_each(|sum| *sum *= scale);
        }
        // Integers are within ±1.
        if !matches!(decoded, GenericAudioBufferRef::F32(_) | GenericAudioBufferRef::F64(_)) {
            return Ok(());
        }
        let new = &self.samples[begin..];
        let is_wild = |sample: &f32| sample.is_nan() || sample.abs() > MAX_LEVEL;
        // All are looked at, side by side, before the one is looked for.
        if !new.iter().fold(false, |any, sample| any | is_wild(sample)) {
            return Ok(());
        }
        let sample = new.iter().find(|sample| is_wild(sample)).expect("there is one");
        Err(format!("a sample is {sample}, but samples must lie within ±1 (in floating point within ±{MAX_LEVEL})"))
    }

    /// # Errors
    /// The segment of a file of so many samples a channel lasts longer than is taken.
    fn check_length(&self, num_samples: u64, rate: u32) -> Result<(), String> {
        let range = self.range(rate);
        let num_samples = num_samples.min(range.end).saturating_sub(range.start);
        let (seconds, limit) = (num_samples as f64 / f64::from(rate), self.limits.max_seconds);
        if seconds > limit {
            return Err(format!("lasts {seconds:.1} s or more, more than data.audio.max_seconds = {limit}"));
        }
        if num_samples > (MAX_SOUND_BYTES / size_of::<f32>()) as u64 {
            return Err(format!(
                "lasts {seconds:.1} s at {rate} Hz, which takes more than {} MiB",
                MAX_SOUND_BYTES >> 20
            ));
        }
        Ok(())
    }
}

fn probe(bytes: &[u8]) -> Result<Box<dyn FormatReader + '_>, String> {
    if bytes.is_empty() {
        return Err("empty file, not an audio file".to_owned());
    }
    let source = MediaSourceStream::new(Box::new(Cursor::new(bytes)), MediaSourceStreamOptions::default());
    let limit = Limit::Maximum(MAX_TAG_BYTES);
    let tags = MetadataOptions::default().limit_tag_bytes(limit).limit_visual_bytes(limit);
    symphonia::default::get_probe().probe(&Hint::new(), source, FormatOptions::default(), tags).map_err(|error| {
        let kinds = "WAV, AIFF, FLAC, MP3, Ogg Vorbis, and AAC in MP4 are supported";
        match error {
            Error::Unsupported(_) => format!("not a supported audio file ({kinds}); {}", convert()),
            error => format!("not an audio file, or a corrupt one ({}); {kinds}", describe(&error)),
        }
    })
}

fn sound_of<'a>(format: &'a (dyn FormatReader + '_)) -> Result<(&'a Track, &'a AudioCodecParameters), String> {
    let tracks = format.default_track(TrackType::Audio).into_iter().chain(format.tracks());
    let mut tracks = tracks.filter_map(|track| Some((track, track.codec_params.as_ref()?.audio()?)));
    tracks.next().ok_or_else(|| NO_SOUND.to_owned())
}

fn decoder(params: &AudioCodecParameters, header: Option<&[u8]>) -> Result<Box<dyn AudioDecoder>, String> {
    let last = header.and_then(|header| LAST_VORBIS.take().filter(|last| *last.header == *header));
    if let Some(Vorbis { mut decoder, .. }) = last {
        decoder.reset();
        return Ok(decoder);
    }
    let made = symphonia::default::get_codecs().make_audio_decoder(params, &AudioDecoderOptions::default());
    made.map_err(|error| match error {
        Error::Unsupported(_) if params.codec == CODEC_ID_AAC => {
            format!("AAC other than AAC-LC of one or two channels is not supported; {}", convert())
        }
        Error::Unsupported(_) => format!("{} is not supported; {}", name(params.codec), convert()),
        error => format!("{}: {}", name(params.codec), describe(&error)),
    })
}

/// Returns the number of samples of each channel by the header; for a WAV file the number that its data have room for, since a second
/// header may say less.
fn num_samples(track: &Track, params: &AudioCodecParameters) -> Option<u64> {
    if let Some(num_frames) = track.num_frames {
        return Some(num_frames);
    }
    let seconds = track.time_base?.calc_time(track.start_ts.checked_add(track.duration?)?)?.as_secs_f64();
    Some((seconds * f64::from(params.sample_rate?)).round() as u64)
}

fn check_kind(rate: u32, channels: usize) -> Result<(), String> {
    if !RATES.contains(&rate) {
        return Err(format!("has a sample rate of {rate} Hz; {} to {} are supported", RATES.start(), RATES.end()));
    }
    match channels {
        1..=MAX_CHANNELS => Ok(()),
        _ => Err(format!("has {channels} channels; 1 to {MAX_CHANNELS} are supported")),
    }
}

fn convert() -> &'static str {
    "convert it: ffmpeg -i FILE -ar 16000 -ac 1 NEW.flac"
}

fn describe(error: &Error) -> String {
    match error {
        Error::IoError(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => "truncated".to_owned(),
        error => error.to_string(),
    }
}

/// Returns the name that users know a codec by.
fn name(codec: AudioCodecId) -> String {
    let known = symphonia::default::get_codecs().get_audio_decoder(codec);
    let name = match codec {
        CODEC_ID_OPUS => "Opus",
        CODEC_ID_SPEEX => "Speex",
        CODEC_ID_ALAC => "ALAC",
        CODEC_ID_MP1 => "MP1",
        CODEC_ID_MP2 => "MP2",
        CODEC_ID_AC3 => "AC-3",
        CODEC_ID_EAC3 => "E-AC-3",
        CODEC_ID_WMA => "WMA",
        CODEC_ID_ADPCM_MS | CODEC_ID_ADPCM_IMA_WAV | CODEC_ID_ADPCM_IMA_QT => "ADPCM",
        _ => {
            return known
                .map_or_else(|| format!("the codec {codec}"), |known| known.codec.info.short_name.to_uppercase());
        }
    };
    name.to_owned()
}
