//! Files and samples as one page that needs nothing else: pictures lie in it, everything is escaped, nothing runs.

use std::io::Cursor;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use image::imageops::{FilterType, resize};
use image::{ImageFormat, RgbImage};
use minijinja::{Environment, Value, context};

use super::inspect::{Field, FileInfo, Shown};
use crate::data::error::BadSample;

/// Larger pictures are reduced.
const MAX_SIDE: u32 = 320;

const PAGE: &str = include_str!("samples.html");

/// Returns the page.
pub fn page(files: &[FileInfo], samples: &[Result<Shown, BadSample>]) -> String {
    let files: Vec<Value> = files.iter().map(of_file).collect();
    let samples: Vec<Value> = samples.iter().map(of_sample).collect();
    // A name that ends in `.html` is what has everything escaped.
    let page = Environment::new().render_named_str("samples.html", PAGE, context! { files, samples });
    page.expect("the template is ours")
}

fn of_file(file: &FileInfo) -> Value {
    let field = |field: &Field| context! { name => &field.name, types => &field.types, count => field.count };
    let fields: Vec<Value> = file.fields.iter().map(field).collect();
    context! { path => file.path.display().to_string(), format => &file.format, samples => file.samples, fields }
}

fn of_sample(sample: &Result<Shown, BadSample>) -> Value {
    let sample = match sample {
        Ok(sample) => sample,
        Err(bad) => return context! { bad => bad.to_string() },
    };
    let pictures = sample.media.iter().flat_map(|media| {
        media.pictures.iter().map(move |picture| {
            let (width, height) = picture.dimensions();
            let data = Value::from_safe_string(data_uri(picture));
            context! { name => &media.name, size => format!("{width}×{height}"), data }
        })
    });
    let sounds = sample.media.iter().filter(|media| !media.about.is_empty());
    let sounds: Vec<Value> = sounds.map(|media| context! { name => &media.name, about => &media.about }).collect();
    let Shown { place, turns, rendered, num_tokens, .. } = sample;
    context! { place, turns, rendered, num_tokens, sounds, pictures => pictures.collect::<Vec<Value>>() }
}

fn data_uri(picture: &RgbImage) -> String {
    let (width, height) = picture.dimensions();
    let scale = f64::from(MAX_SIDE) / f64::from(width.max(height).max(1));
    let small;
    let picture = if scale < 1.0 {
        let side = |side: u32| ((f64::from(side) * scale) as u32).max(1);
        small = resize(picture, side(width), side(height), FilterType::Triangle);
        &small
    } else {
        picture
    };
    let mut bytes = Cursor::new(Vec::new());
    // Into memory: nothing that could fail but for a picture of no pixels.
    let _ = picture.write_to(&mut bytes, ImageFormat::Png);
    format!("data:image/png;base64,{}", STANDARD.encode(bytes.into_inner()))
}

#[cfg(test)]
mod tests {
    use super::super::inspect::ShownMedia;
    use super::*;
    use crate::data::media::MediaKind;

    #[test]
    fn nothing_of_the_data_is_markup() {
        let evil = "<script>alert(\"1\")</script><img src=x onerror='a'>&";
        let files = [FileInfo {
            path: evil.into(),
            format: "messages".into(),
            samples: 1,
            bytes: None,
            fields: vec![Field { name: evil.into(), types: "string".into(), count: 1 }],
        }];
        let media = ShownMedia {
            name: evil.into(),
            kind: MediaKind::Image,
            pictures: vec![RgbImage::new(900, 3)],
            about: String::new(),
        };
        let sample = Shown {
            place: evil.into(),
            turns: vec![(evil.into(), evil.into())],
            rendered: Some(vec![(evil.into(), false), (evil.into(), true)]),
            num_tokens: Some(3),
            media: vec![media],
        };
        let bad = BadSample { file: evil.into(), at: "1".into(), reason: evil.into(), too_long: false };
        let page = page(&files, &[Ok(sample), Err(bad)]);
        assert!(!page.contains("<script") && !page.contains("<img src=x") && !page.contains("onerror='"), "{page}");
        assert_eq!(page.matches("&lt;script&gt;").count(), 11);
        assert!(page.contains("src=\"data:image/png;base64,iVBOR") && page.contains("<mark>&lt;script"));
        assert!(page.contains("title=\"&lt;script&gt;"));
    }
}
