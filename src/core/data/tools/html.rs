//! Files and samples as one page that needs nothing else: pictures lie in it, everything is escaped, nothing runs.

use std::fmt::Write as _;
use std::io::Cursor;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use image::imageops::{FilterType, resize};
use image::{ImageFormat, RgbImage};

use super::inspect::{FileInfo, Shown};
use crate::data::error::BadSample;

/// Larger pictures are reduced.
const MAX_SIDE: u32 = 320;

const HEAD: &str = "<!doctype html><html lang=\"en\"><meta charset=\"utf-8\">\
<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; img-src data:; style-src 'unsafe-inline'\">\
<title>Samples</title><style>\
body{font:15px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;color:#222}\
table{border-collapse:collapse}td,th{padding:.15rem .8rem .15rem 0;text-align:left}\
section{border-top:1px solid #ccc;padding:1rem 0}h2{font-size:1rem;color:#555}\
.role{font-weight:600;color:#555}.text,.model{white-space:pre-wrap;overflow-wrap:anywhere}\
.model{background:#f5f5f5;padding:.6rem;font-family:ui-monospace,monospace;font-size:13px}\
mark{background:#c9f0cf}img{margin:.3rem .3rem .3rem 0;vertical-align:top}.bad{color:#b00020}</style>";

/// The page.
pub fn page(files: &[FileInfo], samples: &[Result<Shown, BadSample>]) -> String {
    let mut page = HEAD.to_owned();
    for file in files {
        let path = file.path.display().to_string();
        let _ =
            write!(page, "<h1>{}</h1><p>{}, {} samples</p><table>", escape(&path), escape(&file.format), file.samples);
        for field in &file.fields {
            let (name, types) = (escape(&field.name), escape(&field.types));
            let _ = write!(page, "<tr><td>{name}<td>{types}<td>{}", field.count);
        }
        page += "</table>";
    }
    for sample in samples {
        match sample {
            Ok(sample) => section(&mut page, sample),
            Err(bad) => {
                let _ = write!(page, "<section class=\"bad\">{}</section>", escape(&bad.to_string()));
            }
        }
    }
    page
}

fn section(page: &mut String, sample: &Shown) {
    let _ = write!(page, "<section><h2>{}", escape(&sample.place));
    if let Some(num_tokens) = sample.num_tokens {
        let _ = write!(page, " · {num_tokens} tokens");
    }
    *page += "</h2>";
    for media in &sample.media {
        let name = escape(&media.name);
        for picture in &media.pictures {
            let (width, height) = picture.dimensions();
            let _ =
                write!(page, "<img alt=\"{name}\" title=\"{name}, {width}×{height}\" src=\"{}\">", data_uri(picture));
        }
    }
    for (role, text) in &sample.turns {
        let _ = write!(
            page,
            "<p><span class=\"role\">{}</span> <span class=\"text\">{}</span>",
            escape(role),
            escape(text)
        );
    }
    if let Some(rendered) = &sample.rendered {
        *page += "<div class=\"model\">";
        for (text, learnt) in rendered {
            let text = escape(text);
            *page += &if *learnt { format!("<mark>{text}</mark>") } else { text };
        }
        *page += "</div>";
    }
    *page += "</section>";
}

fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '<' => escaped += "&lt;",
            '>' => escaped += "&gt;",
            '&' => escaped += "&amp;",
            '"' => escaped += "&quot;",
            '\'' => escaped += "&#39;",
            c => escaped.push(c),
        }
    }
    escaped
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
    use super::super::inspect::{Field, ShownMedia};
    use super::*;
    use crate::data::media::Kind;

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
        let media = ShownMedia { name: evil.into(), kind: Kind::Image, pictures: vec![RgbImage::new(900, 3)] };
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
