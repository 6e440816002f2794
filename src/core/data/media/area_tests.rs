use image::RgbImage;

use super::resize_area;

/// Draws smooth waves and hard edges, as the script makes them.
fn picture([width, height, seed]: [u32; 3]) -> RgbImage {
    RgbImage::from_fn(width, height, |x, y| {
        let value = [x * 7 + y * seed, x * y + 31 * seed, ((x / 5 + y / 3) % 2) * 200 + 20];
        image::Rgb(value.map(|value| (value % 256) as u8))
    })
}

/// `goldens/area.json` has what OpenCV 5.0 makes of pictures that shrink by whole numbers and others, grow, and do one of each
/// (`tests/oracle/make_area.py`): the first bytes, and a sum in which each byte has a weight of its place.
#[test]
fn pictures_are_those_of_opencv() {
    let cases: Vec<serde_json::Value> = serde_json::from_str(include_str!("../goldens/area.json")).unwrap();
    for case in cases {
        let size: Vec<u32> = serde_json::from_value(case["size"].clone()).unwrap();
        let found = resize_area(&picture([size[0], size[1], size[2]]), size[3] as usize, size[4] as usize);
        assert_eq!(found.len(), (size[3] * size[4] * 3) as usize);
        let first: Vec<u8> = serde_json::from_value(case["first"].clone()).unwrap();
        assert_eq!(found[..first.len()], first, "{size:?}");
        let sum: u64 = found.iter().enumerate().map(|(at, value)| (at as u64 % 251 + 1) * u64::from(*value)).sum();
        assert_eq!(Some(sum), case["sum"].as_u64(), "{size:?}");
    }
}
