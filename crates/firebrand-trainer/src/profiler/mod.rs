//! Stand-in.
/// p
#[derive(Default)]
pub struct Profiler;
impl Profiler {
    /// s
    pub fn span(&self, _n: &'static str) -> Span { Span }
    /// r
    pub fn report(&self) {}
}
/// s
pub struct Span;
impl Drop for Span { fn drop(&mut self) {} }
