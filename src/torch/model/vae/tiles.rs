//! Large pictures in overlapping tiles, blended where they overlap: less memory, and other numbers than the whole picture's.

use tch::{Kind, Tensor};

/// Sides of a tile and distances between tiles, in pixels, each of rows and columns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tiles {
    pub side: i64,
    pub stride: i64,
}

impl Default for Tiles {
    /// Returns the sizes that diffusers has by default.
    fn default() -> Tiles {
        Tiles { side: 256, stride: 192 }
    }
}

impl Tiles {
    /// Calls `decode` on latents `[T, H, W, C]` tile by tile. A latent is `space` pixels a side, and a place of what `decode` gives
    /// `patch` pixels.
    pub(super) fn blended(
        &self,
        latents_THWC: &Tensor,
        [space, patch]: [i64; 2],
        decode: impl Fn(&Tensor) -> Tensor,
    ) -> Tensor {
        let (rows, columns) = (latents_THWC.size()[1], latents_THWC.size()[2]);
        let ([side, stride], places) = ([self.side / space, self.stride / space], self.stride / patch);
        if rows <= side && columns <= side {
            return decode(latents_THWC);
        }
        let overlap = (self.side - self.stride) / patch;
        let starts = |len: i64| (0..len).step_by(stride as usize);
        let cut = |dim: i64, start: i64, x: &Tensor| x.narrow(dim, start, side.min(x.size()[dim as usize] - start));
        let mut above: Vec<Tensor> = Vec::new();
        let mut bands = Vec::new();
        for top in starts(rows) {
            let mut band: Vec<Tensor> = Vec::new();
            for (number, left) in starts(columns).enumerate() {
                let mut tile = decode(&cut(2, left, &cut(1, top, latents_THWC)));
                if let Some(above) = above.get(number) {
                    blend(above, &mut tile, 1, overlap);
                }
                if let Some(before) = band.last() {
                    blend(before, &mut tile, 2, overlap);
                }
                band.push(tile);
            }
            let kept = band.iter().map(|tile| {
                let len = |dim: usize| places.min(tile.size()[dim]);
                tile.narrow(1, 0, len(1)).narrow(2, 0, len(2))
            });
            bands.push(Tensor::cat(&kept.collect::<Vec<_>>(), 2));
            above = band;
        }
        Tensor::cat(&bands, 1)
    }
}

/// Goes from the last `extent` rows (`dim` 1) or columns (`dim` 2) of `before` over to the first of `tile`, in place.
fn blend(before: &Tensor, tile: &mut Tensor, dim: i64, extent: i64) {
    let sizes = [before, &*tile].map(|it| it.size()[dim as usize]);
    let extent = extent.min(sizes[0]).min(sizes[1]);
    let mut shape = [1i64; 4];
    shape[dim as usize] = extent;
    let share = (Tensor::arange(extent, (Kind::Float, tile.device())) / extent as f64).view(shape).to_kind(tile.kind());
    let (old, mut new) = (before.narrow(dim, sizes[0] - extent, extent), tile.narrow(dim, 0, extent));
    new.copy_(&(old * (1.0 - &share) + &new * &share));
}
