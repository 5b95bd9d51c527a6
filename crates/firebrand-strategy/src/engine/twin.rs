use std::sync::Arc;

use firebrand_core::{AnyTensor, ErasedModule, ParamInfo, ParamKind, ParamMapper};

use super::anomaly::Watch;
use crate::{Engine, GradientSink, parameter_use};

/// A clone of the module whose trained parameters, or those of one optimizer, go through parameter-use nodes. The others are
/// constants in it.
pub(super) fn used(
    engine: &Engine,
    module: &dyn ErasedModule,
    optimizer: Option<usize>,
    watch: Option<&Arc<Watch>>,
) -> Box<dyn ErasedModule> {
    let sink = |optimizer| {
        let sink = engine.exchange.sink(optimizer);
        watch.map_or_else(|| Arc::clone(&sink), |watch| watch.sink(Arc::clone(&sink)))
    };
    module.mapped_clone(&mut UseParameters {
        engine,
        optimizer,
        sinks: (0..engine.optimizers.len()).map(sink).collect(),
    })
}

struct UseParameters<'a> {
    engine: &'a Engine,
    optimizer: Option<usize>,
    sinks: Vec<Arc<dyn GradientSink>>,
}

impl UseParameters<'_> {
    /// The index under which the gradient of a parameter is kept and the sink it goes to, if it is trained now.
    fn target(&self, info: &ParamInfo<'_>) -> Option<(usize, &Arc<dyn GradientSink>)> {
        let index = self
            .engine
            .table
            .index_of(info.id)
            .filter(|index| self.engine.is_trained(*index))?;
        let index = self.engine.table.get(index)?.tied_to.unwrap_or(index);
        let owner = self.engine.optimizers.optimizer_of(index)?;
        if self.optimizer.is_some_and(|optimizer| optimizer != owner) {
            return None;
        }
        Some((index, self.sinks.get(owner)?))
    }
}

impl ParamMapper for UseParameters<'_> {
    fn wants(&mut self, info: &ParamInfo<'_>) -> bool {
        // A lazy parameter belongs to another rank; a buffer is written through to the module when it is mapped.
        let known = self
            .engine
            .table
            .index_of(info.id)
            .and_then(|index| self.engine.table.get(index));
        info.initialized && known.is_some_and(|entry| entry.kind == ParamKind::Parameter)
    }

    fn map(&mut self, info: &ParamInfo<'_>, value: AnyTensor, requires_grad: bool) -> AnyTensor {
        let target = self.target(info);
        let own = self.engine.table.index_of(info.id).unwrap_or(usize::MAX);
        let compute = self.engine.compute_dtype_of(own);
        let value = if requires_grad == target.is_some() {
            value
        } else {
            // Whether it is trained is the engine's to say; the module's own flag is only where that began.
            let device = value.device();
            value.inner().on_autodiff(&device, target.is_some())
        };
        match target {
            Some((index, sink)) => {
                let turns = self.engine.turns.as_ref();
                let turn = turns.and_then(|turns| turns.get(own));
                parameter_use(value, turn, compute, index, Arc::clone(sink))
            }
            None => value.cast(compute),
        }
    }
}
