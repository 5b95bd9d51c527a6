use burn::module::{Flag, Module, ModuleMapper, ModuleVisitor, Param, ParamId};
use burn::tensor::kind::Basic;
use burn::tensor::{Bool, Device, Int, Shape, Tensor};

use super::{AnyTensor, path_id};

/// What is known of a value before it is looked at: nothing here materialises a lazy parameter.
#[derive(Debug)]
pub struct ParamInfo<'a> {
    /// The fields from the root to the value, joined with dots.
    pub path: &'a str,
    /// The identity: [`path_id`] of the path for a parameter that the trainer has taken over, random otherwise.
    pub id: ParamId,
    /// The shape.
    pub shape: Shape,
    /// Whether the value holds floats; integers and booleans are never trained.
    pub float: bool,
    /// Whether the value is materialised.
    pub initialized: bool,
}

/// Looks at the values of a module, without their ranks.
pub trait ParamVisitor {
    /// Whether to hand over this value. A lazy parameter that is not wanted stays lazy.
    fn wants(&mut self, info: &ParamInfo<'_>) -> bool;

    /// Takes the value, without autodiff, and whether it requires gradients.
    fn visit(&mut self, info: &ParamInfo<'_>, value: AnyTensor, requires_grad: bool);
}

/// Replaces values of a module, without their ranks.
pub trait ParamMapper {
    /// Whether to replace this value. A lazy parameter that is not wanted stays lazy.
    fn wants(&mut self, info: &ParamInfo<'_>) -> bool;

    /// Called before a wanted lazy value is materialised, with the device on which that will happen.
    fn before_materialize(&mut self, info: &ParamInfo<'_>, device: &Device) {
        let _ = (info, device);
    }

    /// The new value for the old one, both as they stand in the module: on an autodiff device they carry autodiff.
    ///
    /// The result must have the rank and the kind of the value.
    fn map(&mut self, info: &ParamInfo<'_>, value: AnyTensor, requires_grad: bool) -> AnyTensor;
}

/// Visits every value of a module in the order of its fields.
pub fn visit_module<M: Module>(module: &M, visitor: &mut dyn ParamVisitor) {
    module.visit(&mut Visitor {
        path: Path::default(),
        visitor,
    });
}

/// Maps every value of a module in the order of its fields.
///
/// # Panics
///
/// If the mapper returns a value of another rank or kind, which is a fault of the mapper.
pub fn map_module<M: Module>(module: M, mapper: &mut dyn ParamMapper) -> M {
    module.map(&mut Mapper {
        path: Path::default(),
        mapper,
    })
}

/// Gives every parameter the identity of its path. Lazy parameters stay lazy; running statistics keep their own identity,
/// which is how they are told from parameters afterwards.
pub fn assign_path_ids<M: Module>(module: M) -> M {
    module.map(&mut AssignIds {
        path: Path::default(),
    })
}

/// Puts the float parameters that are wanted on the autodiff device, requiring gradients unless they are frozen, and ends the
/// validation mode of dropout and norms.
///
/// Burn keeps whether a parameter or a layer was frozen apart from its value, and only its own transition to training looks at
/// it.
pub fn train_params<M: Module>(module: M, wants: &mut dyn FnMut(&ParamInfo<'_>) -> bool) -> M {
    module.map(&mut TrainParams {
        path: Path::default(),
        wants,
    })
}

/// Visits the fields of a module that are modules or parameters, whether they hold values or not: with the path of the field and
/// the name of the struct that it belongs to.
pub fn visit_fields<M: Module>(module: &M, visit: &mut dyn FnMut(&str, &str)) {
    module.visit(&mut Fields {
        path: Path::default(),
        visit,
    });
}

struct Fields<'a> {
    path: Path,
    visit: &'a mut dyn FnMut(&str, &str),
}

impl ModuleVisitor for Fields<'_> {
    fn enter_module(&mut self, name: &str, container_type: &str) {
        self.path.enter(name);
        let container = container_type.rsplit(':').next().unwrap_or(container_type);
        (self.visit)(&self.path.text, container);
    }

    fn exit_module(&mut self, _name: &str, _container_type: &str) {
        self.path.exit();
    }
}

/// The path to the current field, kept as one string so that a traversal allocates nothing per value.
#[derive(Default)]
struct Path {
    text: String,
    ends: Vec<usize>,
}

impl Path {
    fn enter(&mut self, name: &str) {
        self.ends.push(self.text.len());
        if !self.text.is_empty() {
            self.text.push('.');
        }
        self.text.push_str(name);
    }

    fn exit(&mut self) {
        if let Some(end) = self.ends.pop() {
            self.text.truncate(end);
        }
    }
}

macro_rules! track_path {
    () => {
        fn enter_module(&mut self, name: &str, _container_type: &str) {
            self.path.enter(name);
        }

        fn exit_module(&mut self, _name: &str, _container_type: &str) {
            self.path.exit();
        }
    };
}

fn info<'a, const D: usize, K: Basic>(
    path: &'a Path,
    param: &Param<Tensor<D, K>>,
    float: bool,
) -> ParamInfo<'a>
where
    Tensor<D, K>: burn::module::Parameter,
{
    ParamInfo {
        path: &path.text,
        id: param.id,
        shape: param.lazy_shape(),
        float,
        initialized: param.is_initialized(),
    }
}

struct Visitor<'a> {
    path: Path,
    visitor: &'a mut dyn ParamVisitor,
}

impl ModuleVisitor for Visitor<'_> {
    track_path!();

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let info = info(&self.path, param, true);
        if self.visitor.wants(&info) {
            let value = param.base();
            let requires_grad = value.is_require_grad();
            self.visitor.visit(&info, value.inner().into(), requires_grad);
        }
    }

    fn visit_int<const D: usize>(&mut self, param: &Param<Tensor<D, Int>>) {
        let info = info(&self.path, param, false);
        if self.visitor.wants(&info) {
            self.visitor.visit(&info, param.base().inner().into(), false);
        }
    }

    fn visit_bool<const D: usize>(&mut self, param: &Param<Tensor<D, Bool>>) {
        let info = info(&self.path, param, false);
        if self.visitor.wants(&info) {
            self.visitor.visit(&info, param.base().inner().into(), false);
        }
    }
}

struct Mapper<'a> {
    path: Path,
    mapper: &'a mut dyn ParamMapper,
}

impl Mapper<'_> {
    fn replace<const D: usize, K: Basic>(
        &mut self,
        param: Param<Tensor<D, K>>,
        float: bool,
    ) -> Param<Tensor<D, K>>
    where
        Tensor<D, K>: burn::module::Parameter,
    {
        let info = info(&self.path, &param, float);
        if !self.mapper.wants(&info) {
            return param;
        }
        if !info.initialized {
            self.mapper.before_materialize(&info, &param.lazy_device());
        }
        let (id, tensor, state) = param.consume();
        let requires_grad = burn::module::Parameter::is_require_grad(&tensor);
        let mapped = self.mapper.map(&info, AnyTensor::from(tensor), requires_grad);
        #[allow(clippy::expect_used)] // The contract of `ParamMapper::map`, which only Firebrand implements.
        let mapped = mapped
            .typed::<D, K>()
            .expect("a mapped parameter keeps its rank and kind");
        Param::from_mapped_value(id, mapped, state)
    }
}

impl ModuleMapper for Mapper<'_> {
    track_path!();

    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        self.replace(param, true)
    }

    fn map_int<const D: usize>(&mut self, param: Param<Tensor<D, Int>>) -> Param<Tensor<D, Int>> {
        self.replace(param, false)
    }

    fn map_bool<const D: usize>(&mut self, param: Param<Tensor<D, Bool>>) -> Param<Tensor<D, Bool>> {
        self.replace(param, false)
    }
}

struct AssignIds {
    path: Path,
}

impl ModuleMapper for AssignIds {
    track_path!();

    fn map_float<const D: usize>(&mut self, mut param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        param.id = path_id(&self.path.text);
        param
    }
}

struct TrainParams<'a> {
    path: Path,
    wants: &'a mut dyn FnMut(&ParamInfo<'_>) -> bool,
}

impl ModuleMapper for TrainParams<'_> {
    track_path!();

    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        if (self.wants)(&info(&self.path, &param, true)) {
            param.train()
        } else {
            param
        }
    }

    fn map_flag(&mut self, flag: Param<Flag>) -> Param<Flag> {
        flag.train()
    }
}
