//! Arrays of 32-bit integers and floats in NumPy's file format (NEP 1, version 1.0), so that Python reads them too. No other
//! types.

use super::error::DataError;

const MAGIC: &[u8] = b"\x93NUMPY\x01\x00";
/// The header ends at a multiple of it.
const ALIGNMENT: usize = 64;
/// Axes of an array at most.
const MAX_AXES: usize = 4;

/// Writes `values` in rows of the last axis of `shape`.
///
/// # Panics
/// `shape` is of another number of values.
pub fn write_npy(shape: &[usize], values: &[i32]) -> Vec<u8> {
    write("<i4", shape, values.iter().map(|value| value.to_le_bytes()))
}

/// Works like [`write_npy`]: integers where all values are whole, else floats.
///
/// # Panics
/// `shape` is of another number of values.
pub fn write_npy_numbers(shape: &[usize], values: &[f32]) -> Vec<u8> {
    match values.iter().all(|value| *value as i32 as f32 == *value) {
        true => write("<i4", shape, values.iter().map(|value| (*value as i32).to_le_bytes())),
        false => write("<f4", shape, values.iter().map(|value| value.to_le_bytes())),
    }
}

fn write(descr: &str, shape: &[usize], values: impl ExactSizeIterator<Item = [u8; 4]>) -> Vec<u8> {
    assert_eq!(shape.iter().product::<usize>(), values.len(), "a shape of its values");
    let axes: Vec<String> = shape.iter().map(usize::to_string).collect();
    // A tuple as Python writes it.
    let axes = if let [axis] = axes.as_slice() { format!("{axis},") } else { axes.join(", ") };
    let mut header = format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': ({axes}), }}");
    let len = (MAGIC.len() + 2 + header.len() + 1).next_multiple_of(ALIGNMENT);
    while MAGIC.len() + 2 + header.len() + 1 < len {
        header.push(' ');
    }
    header.push('\n');
    let mut bytes = Vec::with_capacity(len + 4 * values.len());
    bytes.extend_from_slice(MAGIC);
    bytes.extend_from_slice(&(header.len() as u16).to_le_bytes());
    bytes.extend_from_slice(header.as_bytes());
    bytes.extend(values.flatten());
    bytes
}

/// Returns the shape and the values of what [`write_npy`] or NumPy wrote. What is allocated is bounded by the length of `bytes`.
///
/// # Errors
/// Another type or version, or a length that is not the shape's.
pub fn read_npy(bytes: &[u8]) -> Result<(Vec<usize>, Vec<i32>), DataError> {
    let Array { descr, shape, values } = read(bytes)?;
    if descr != "<i4" {
        return Err(DataError::Line(format!("an array of '{descr}', not of 32-bit integers ('<i4')")));
    }
    Ok((shape, values.iter().map(|value| i32::from_le_bytes(*value)).collect()))
}

/// Works like [`read_npy`] for arrays of 32-bit integers or floats.
///
/// # Errors
/// Another type or version, a length that is not the shape's, or a number that is not finite.
pub fn read_npy_numbers(bytes: &[u8]) -> Result<(Vec<usize>, Vec<f32>), DataError> {
    let Array { descr, shape, values } = read(bytes)?;
    let number = match descr {
        "<i4" => |bytes: &[u8; 4]| i32::from_le_bytes(*bytes) as f32,
        "<f4" => |bytes: &[u8; 4]| f32::from_le_bytes(*bytes),
        _ => return Err(DataError::Line(format!("an array of '{descr}', not of '<i4' or '<f4'"))),
    };
    let values: Vec<f32> = values.iter().map(number).collect();
    match values.iter().find(|value| !value.is_finite()) {
        Some(value) => Err(DataError::Line(format!("an array must hold finite numbers, found {value}"))),
        None => Ok((shape, values)),
    }
}

/// An array of 32-bit values of the type `descr`.
struct Array<'a> {
    descr: &'a str,
    shape: Vec<usize>,
    values: &'a [[u8; 4]],
}

fn read(bytes: &[u8]) -> Result<Array<'_>, DataError> {
    let wrong = |what: &str| DataError::Line(format!("an array {what}"));
    let rest = bytes.strip_prefix(MAGIC).ok_or_else(|| wrong("is not in NumPy's format, version 1.0"))?;
    let (len, rest) = rest.split_first_chunk::<2>().ok_or_else(|| wrong("has no header"))?;
    let len = usize::from(u16::from_le_bytes(*len));
    let (header, data) = rest.split_at_checked(len).ok_or_else(|| wrong("has a truncated header"))?;
    let header = std::str::from_utf8(header).map_err(|_| wrong("has a header that is not text"))?;
    let descr = header.split_once("'descr': '").and_then(|(_, rest)| rest.split_once('\'')).map(|(descr, _)| descr);
    let Some(descr) = descr.filter(|_| header.contains("'fortran_order': False")) else {
        return Err(wrong("must hold numbers in rows (fortran_order False)"));
    };
    let shape = header.split_once("'shape': (").and_then(|(_, rest)| rest.split_once(')')).map(|(shape, _)| shape);
    let shape: Option<Vec<usize>> = shape.and_then(|shape| {
        shape.split(',').map(str::trim).filter(|axis| !axis.is_empty()).map(|axis| axis.parse().ok()).collect()
    });
    let shape = shape.filter(|shape| shape.len() <= MAX_AXES).ok_or_else(|| wrong("has no shape"))?;
    let num_values = shape.iter().try_fold(1usize, |product, &axis| product.checked_mul(axis));
    if num_values.and_then(|num| num.checked_mul(4)) != Some(data.len()) {
        return Err(wrong(&format!("has the shape {shape:?}, which does not fit its {} bytes", data.len())));
    }
    Ok(Array { descr, shape, values: data.as_chunks::<4>().0 })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn equal_to_numpy() {
        // numpy.save of numpy.array([[1, -2, 3]], dtype='<i4'), numpy 2.
        let mut expected =
            b"\x93NUMPY\x01\x00\x76\x00{'descr': '<i4', 'fortran_order': False, 'shape': (1, 3), }".to_vec();
        expected.resize(127, b' ');
        expected.push(b'\n');
        expected.extend([1i32, -2, 3].iter().flat_map(|value| value.to_le_bytes()));
        assert_eq!(read_npy(&expected).unwrap(), (vec![1, 3], vec![1, -2, 3]));
        let ours = write_npy(&[1, 3], &[1, -2, 3]);
        assert_eq!(read_npy(&ours).unwrap(), (vec![1, 3], vec![1, -2, 3]));
        assert_eq!(ours.len(), 64 * 2 + 12);
        assert_eq!(ours, expected);
        assert_eq!(read_npy(&write_npy(&[0], &[])).unwrap(), (vec![0], vec![]));
    }

    #[test]
    fn whole_numbers_are_integers_and_others_floats() {
        let whole = write_npy_numbers(&[2], &[1.0, 7.0]);
        assert_eq!(whole, write_npy(&[2], &[1, 7]));
        assert_eq!(read_npy_numbers(&whole).unwrap().1, [1.0, 7.0]);
        let fractions = write_npy_numbers(&[1, 2], &[0.5, 7.0]);
        assert_eq!(read_npy_numbers(&fractions).unwrap(), (vec![1, 2], vec![0.5, 7.0]));
        assert!(read_npy(&fractions).unwrap_err().to_string().contains("'<f4'"));
        let endless = write_npy_numbers(&[1], &[f32::INFINITY]);
        assert!(read_npy_numbers(&endless).unwrap_err().to_string().contains("inf"));
    }

    proptest! {
        #[test]
        fn round_trips_and_damage(
            values in prop::collection::vec(any::<i32>(), 0..40),
            at in any::<prop::sample::Index>(),
            byte in any::<u8>(),
        ) {
            let mut bytes = write_npy(&[values.len()], &values);
            prop_assert_eq!(read_npy(&bytes).unwrap(), (vec![values.len()], values));
            let at = at.index(bytes.len());
            prop_assert!(read_npy(&bytes[..at]).is_err());
            bytes[at] = byte;
            let _ = read_npy(&bytes);
        }
    }
}
