//! The autoencoders of Wan: what their own releases call the modules of Diffusers' `AutoencoderKLWan`. Release 2.1 counts the
//! modules of encoder and decoder one after the other, release 2.2 within each block; two residual blocks in an encoder's block
//! and three in a decoder's, as in everything that was published.

use super::table::{Table, pair};

/// Modules outside the sequences of blocks.
const OUTSIDE: [[&str; 2]; 10] = [
    ["conv1", "quant_conv"],
    ["conv2", "post_quant_conv"],
    ["encoder.conv1", "encoder.conv_in"],
    ["decoder.conv1", "decoder.conv_in"],
    ["encoder.middle.1", "encoder.mid_block.attentions.0"],
    ["decoder.middle.1", "decoder.mid_block.attentions.0"],
    ["encoder.head.0", "encoder.norm_out"],
    ["encoder.head.2", "encoder.conv_out"],
    ["decoder.head.0", "decoder.norm_out"],
    ["decoder.head.2", "decoder.conv_out"],
];

/// Modules of a residual block.
const IN_RESIDUAL: [[&str; 2]; 5] = [
    ["residual.0", "norm1"],
    ["residual.2", "conv1"],
    ["residual.3", "norm2"],
    ["residual.6", "conv2"],
    ["shortcut", "conv_shortcut"],
];

/// Modules that make frames smaller or larger.
const IN_RESAMPLE: [[&str; 2]; 2] = [["resample", "resample"], ["time_conv", "time_conv"]];

/// Blocks of the decoder, and modules that each has where its last one enlarges.
const DECODER: [usize; 2] = [4, 4];

/// Returns the names of release 2.1.
pub(super) fn table_2_1() -> Table {
    let mut table = outside();
    put(&mut table, &IN_RESIDUAL, "encoder.downsamples.*", "encoder.down_blocks.*");
    put(&mut table, &IN_RESAMPLE, "encoder.downsamples.*", "encoder.down_blocks.*");
    let [blocks, modules] = DECODER;
    for number in 0..blocks * modules {
        let (block, module) = (number / modules, number % modules);
        let original = format!("decoder.upsamples.{number}");
        match module + 1 == modules {
            false => put(&mut table, &IN_RESIDUAL, &original, &format!("decoder.up_blocks.{block}.resnets.{module}")),
            true => put(&mut table, &IN_RESAMPLE, &original, &format!("decoder.up_blocks.{block}.upsamplers.0")),
        }
    }
    table
}

/// Returns the names of release 2.2.
pub(super) fn table_2_2() -> Table {
    let mut table = outside();
    put(&mut table, &IN_RESIDUAL, "encoder.downsamples.*.downsamples.*", "encoder.down_blocks.*.resnets.*");
    put(&mut table, &IN_RESAMPLE, "encoder.downsamples.*.downsamples.2", "encoder.down_blocks.*.downsampler");
    put(&mut table, &IN_RESIDUAL, "decoder.upsamples.*.upsamples.*", "decoder.up_blocks.*.resnets.*");
    put(&mut table, &IN_RESAMPLE, "decoder.upsamples.*.upsamples.3", "decoder.up_blocks.*.upsampler");
    table
}

/// Returns the names that both releases have.
fn outside() -> Table {
    let mut table: Table = OUTSIDE.iter().map(|[original, diffusers]| pair(original, diffusers)).collect();
    for side in ["encoder", "decoder"] {
        for (number, resnet) in [(0, 0), (2, 1)] {
            let diffusers = format!("{side}.mid_block.resnets.{resnet}");
            put(&mut table, &IN_RESIDUAL, &format!("{side}.middle.{number}"), &diffusers);
        }
    }
    table
}

/// Adds the parts of a module.
fn put(table: &mut Table, parts: &[[&str; 2]], original: &str, diffusers: &str) {
    let part = |[from, to]: &[&str; 2]| pair(&format!("{original}.{from}"), &format!("{diffusers}.{to}"));
    table.extend(parts.iter().map(part));
}
