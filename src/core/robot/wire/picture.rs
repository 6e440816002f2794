//! Pictures of messages as RGB: arrays of bytes or of floats, channels last or first, and picture files.

use super::array::{Array, DType};
use super::fields::Field;
use crate::data::{Limits, decode_rgb};
use image::RgbImage;

/// Bounds of a picture from a client.
pub const LIMITS: Limits = Limits { max_side: 8192, max_pixels: 1 << 24 };

/// Returns the picture of a field. Floats are brightness from 0 to 1, ×255 and rounded down as openpi does.
///
/// # Errors
/// The reason: the field is no picture, its layout is not clear, or it is too large.
pub fn picture(field: &Field<'_>) -> Result<RgbImage, String> {
    match field {
        Field::Array(array) => of_array(array),
        Field::Encoded(bytes) => decode_rgb(bytes, &LIMITS),
        _ => Err("must be a picture: an array with 3 axes, or a PNG or JPEG file".to_owned()),
    }
}

fn of_array(array: &Array<'_>) -> Result<RgbImage, String> {
    let &[first, second, third] = &array.shape[..] else {
        return Err(format!("a picture must have 3 axes, found shape {:?}", array.shape));
    };
    let (rows, columns, channels_first) = match (first == 3, third == 3) {
        (false, true) => (first, second, false),
        (true, false) => (second, third, true),
        (true, true) => {
            return Err(format!(
                "the shape {:?} is ambiguous (channels first or last): send another size",
                array.shape
            ));
        }
        (false, false) => {
            return Err(format!("the first or the last axis must have 3 channels, found shape {:?}", array.shape));
        }
    };
    let (width, height) = (u32::try_from(columns).unwrap_or(u32::MAX), u32::try_from(rows).unwrap_or(u32::MAX));
    if width == 0 || height == 0 || width.max(height) as usize > LIMITS.max_side || rows * columns > LIMITS.max_pixels {
        let Limits { max_side, max_pixels } = LIMITS;
        return Err(format!(
            "picture has {width}×{height} pixels; at most {max_side} per side and {max_pixels} in total are supported"
        ));
    }
    let bytes = match array.dtype {
        DType::U8 => array.data.to_vec(),
        DType::F32 | DType::F64 => floats(array)?,
        other => return Err(format!("picture has type {other:?}; only uint8 and floats from 0 to 1 are supported")),
    };
    let bytes = match channels_first {
        true => {
            let plane = rows * columns;
            (0..3 * plane).map(|at| bytes[at % 3 * plane + at / 3]).collect()
        }
        false => bytes,
    };
    Ok(RgbImage::from_raw(width, height, bytes).expect("as many bytes as the shape says"))
}

fn floats(array: &Array<'_>) -> Result<Vec<u8>, String> {
    let brightness = |value: f64| match (0.0..=1.0).contains(&value) {
        true => Ok((255.0 * value) as u8),
        false => Err(format!("the values of a float picture must be from 0 to 1, found {value}")),
    };
    array.numbers()?.into_iter().map(brightness).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn array(dtype: DType, shape: [usize; 3], data: &[u8]) -> Result<RgbImage, String> {
        picture(&Field::Array(Array { dtype, shape: shape.into(), data }))
    }

    #[test]
    fn channels_are_found_by_the_shape() {
        let last: Vec<u8> = (0..12).collect();
        let first = [0, 3, 6, 9, 1, 4, 7, 10, 2, 5, 8, 11];
        let expected = RgbImage::from_raw(1, 4, last.clone()).unwrap();
        assert_eq!(array(DType::U8, [4, 1, 3], &last).unwrap(), expected);
        assert_eq!(array(DType::U8, [3, 4, 1], &first).unwrap(), expected);
        assert!(array(DType::U8, [3, 1, 3], &[0; 9]).unwrap_err().contains("channels first or last"));
        assert!(array(DType::U8, [2, 2, 4], &[0; 16]).unwrap_err().contains("must have 3 channels"));
    }

    #[test]
    fn floats_are_brightness_and_other_types_are_refused() {
        let floats: Vec<u8> = [0.0f32, 0.5, 1.0].iter().flat_map(|value| value.to_le_bytes()).collect();
        assert_eq!(array(DType::F32, [1, 1, 3], &floats).unwrap().into_raw(), [0, 127, 255]);
        let bright: Vec<u8> = [0.0f32, 0.5, 255.0].iter().flat_map(|value| value.to_le_bytes()).collect();
        assert!(array(DType::F32, [1, 1, 3], &bright).unwrap_err().contains("255"));
        assert!(array(DType::I32, [1, 1, 3], &[0; 12]).unwrap_err().contains("I32"));
        assert!(array(DType::U8, [0, 4, 3], &[]).is_err());
        assert!(array(DType::U8, [1, 9000, 3], &[0; 27_000]).unwrap_err().contains("9000"));
    }
}
