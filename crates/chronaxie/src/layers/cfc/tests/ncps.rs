//! ncps 1.0.1 in float64 with PyTorch 2.11.0: outputs, and gradients by autograd, as norm and weighted sum.
//!
//! Its cells were called step by step with elapsed times of shape (B, 1), with which its batched arithmetic is right.

use super::super::spec::{Activation, Cfc, Mode};
use super::super::{init, reference};
use super::norm;
use crate::layers::ltc::wirings::{Rule, Wiring};
use crate::op::{Pass, Role, Tensors};

/// Element k of the tensor of that salt.
fn value(k: usize, salt: usize, (low, high): (f64, f64)) -> f64 {
    low + (high - low) * (((17 * k * k + 29 * k + salt + 1) % 101) as f64 / 101.0)
}

fn inputs(p: &Cfc, wiring: Option<&Wiring>) -> Tensors {
    let mut inputs = init::sample(p, Pass::Backward, 1).unwrap();
    if let Some(wiring) = wiring {
        p.masks(wiring).unwrap().iter().for_each(|(name, mask)| inputs.insert(name, mask.clone()));
    }
    let mut fill = |name: &str, salt: usize, range: (f64, f64)| {
        if let Some(v) = inputs.get_mut(name) {
            v.data.iter_mut().enumerate().for_each(|(k, x)| *x = value(k, salt, range));
        }
    };
    fill("x", 0, (-2.0, 2.0));
    fill("h0", 1, (-1.0, 1.0));
    fill("c0", 2, (-1.0, 1.0));
    fill("elapsed", 3, (0.05, 1.5));
    for (at, spec) in p.forward_inputs().iter().filter(|s| s.role == Role::Parameter).enumerate() {
        let range = match &*spec.name {
            name if name.ends_with("weight") => (-0.7, 0.7),
            name if name.ends_with("bias") => (-0.5, 0.5),
            name if name.ends_with('A') => (0.5, 1.5),
            _ => (-1.0, 1.0),
        };
        fill(&spec.name, 4 + at, range);
    }
    fill("grad_out", 101, (-1.0, 1.0));
    fill("grad_final_state", 102, (-1.0, 1.0));
    fill("grad_final_cell", 103, (-1.0, 1.0));
    inputs
}

fn agrees(p: &Cfc, wiring: Option<&Wiring>, expected: &[(&str, f64, f64)]) {
    let inputs = inputs(p, wiring);
    let (forward, backward) =
        (reference::forward::<f64>(p, &inputs).unwrap(), reference::backward::<f64>(p, &inputs).unwrap());
    for &(name, size, weighted) in expected {
        let got = &forward.find(name).or(backward.find(name)).unwrap_or_else(|| panic!("no {name}")).data;
        let weight = |k: usize| ((5 * k + 3) % 11) as f64 / 11.0;
        let sum: f64 = got.iter().enumerate().map(|(k, g)| g * weight(k)).sum();
        assert!((norm(got) - size).abs() < 1e-13 * size, "{name}: norm {} and not {size}", norm(got));
        assert!((sum - weighted).abs() < 1e-12 * size, "{name}: weighted sum {sum} and not {weighted}");
    }
}

fn timed(p: Cfc) -> Cfc {
    Cfc { initial_state: true, elapsed: true, ..p }.build().unwrap()
}

#[test]
fn a_backbone_of_two_layers_with_gelu() {
    let p = timed(Cfc { activation: Activation::Gelu, backbone_units: 6, backbone_layers: 2, ..Cfc::new(3, 4, 2, 5) });
    let expected = [
        ("out", 1.743798881535974, 2.2057769689529567),
        ("final_state", 0.6654630056681125, 0.5240367406945453),
        ("grad_x", 1.5511473165172314, 1.1392836043427812),
        ("grad_h0", 1.5128751071708562, 0.7830938109214065),
        ("grad_elapsed", 0.019752128475499692, 0.0032601419555860663),
        ("grad_backbone_0_weight", 8.413761003922854, 2.2444984355336883),
        ("grad_backbone_0_bias", 3.0189369805271293, -1.4841483633423724),
        ("grad_backbone_1_weight", 6.416196610506896, 0.2793720679285614),
        ("grad_backbone_1_bias", 2.537157040349371, 0.3553128542639973),
        ("grad_ff1_weight", 1.6093799780823024, -0.8271661490572789),
        ("grad_ff1_bias", 1.8052713727825833, -0.4865531654151916),
        ("grad_ff2_weight", 1.5836439025038265, -1.196494858018604),
        ("grad_ff2_bias", 1.9349859021198579, -0.3337222249135927),
        ("grad_time_a_weight", 0.014793264285231441, -0.009586281827535797),
        ("grad_time_a_bias", 0.02310985127725645, -0.01067991071198393),
        ("grad_time_b_weight", 0.08042801808077521, -0.04830745053373057),
        ("grad_time_b_bias", 0.04966642940558403, -0.019036067996195925),
    ];
    agrees(&p, None, &expected);
    let count = p.signature_of(Pass::Backward).unwrap().outputs.len();
    assert_eq!(expected.len(), 2 + count);
}

#[test]
fn wired_pure_cells_with_an_lstm() {
    let wiring = Rule::auto_ncp(9, 3).build(2).unwrap();
    let p = timed(Cfc { mode: Mode::Pure, mixed_memory: true, ..Cfc::of_wiring(3, 4, &wiring) });
    let expected = [
        ("out", 4.352838376383956, 11.652059103502408),
        ("final_state", 4.507984962994241, 10.442804227195289),
        ("final_cell", 3.495037088456201, -1.406259201128181),
        ("grad_x", 1.117497523223277, -0.9872368590792048),
        ("grad_h0", 0.6678634975876405, 0.06376448452839288),
        ("grad_c0", 0.8443012091892488, -0.3976209504324769),
        ("grad_elapsed", 1.5222373163430851, 0.3102205508951969),
        ("grad_layer_0_ff1_weight", 1.1280095221000115, 0.4320920691763265),
        ("grad_layer_0_ff1_bias", 0.814446661914385, 0.5899398721274345),
        ("grad_layer_0_w_tau", 0.2578544666093622, 0.19986151734802513),
        ("grad_layer_0_A", 1.9266128820054036, -1.241998256126456),
        ("grad_layer_1_ff1_weight", 0.8773482492577969, 0.10569305646602489),
        ("grad_layer_1_ff1_bias", 0.5091228699030081, 0.11102335115462046),
        ("grad_layer_1_w_tau", 0.31797170104337374, 0.21248825006636096),
        ("grad_layer_1_A", 3.5678116708176235, 0.11500293826483499),
        ("grad_layer_2_ff1_weight", 1.8702183204876899, 1.380335149507907),
        ("grad_layer_2_ff1_bias", 1.5409310834007999, 0.8936907628707254),
        ("grad_layer_2_w_tau", 0.3580197684679693, -0.0833751670616879),
        ("grad_layer_2_A", 3.5619301784449577, -1.557000570459237),
        ("grad_lstm_input_map_weight", 2.412293643532363, -0.19005582755334216),
        ("grad_lstm_input_map_bias", 2.4188122240423873, -0.4299317995113017),
        ("grad_lstm_recurrent_map_weight", 5.83873001056023, -3.574737138404588),
    ];
    agrees(&p, Some(&wiring), &expected);
    let count = p.signature_of(Pass::Backward).unwrap().outputs.len();
    assert_eq!(expected.len(), 3 + count);
}

#[test]
fn wired_cells_without_the_second_gate() {
    let wiring = Rule::auto_ncp(9, 3).build(2).unwrap();
    let p = timed(Cfc { mode: Mode::NoGate, ..Cfc::of_wiring(3, 4, &wiring) });
    let expected = [
        ("out", 3.707268813381299, -1.8170564355794363),
        ("final_state", 4.741738421093271, 2.2727734616397672),
        ("grad_x", 0.822166346656679, 0.5611983519625408),
        ("grad_h0", 2.7945868984419953, 1.057471140029859),
        ("grad_elapsed", 0.29556498406811266, -0.2489577056095587),
        ("grad_layer_0_ff1_weight", 3.3806969132628364, -0.16794696062225456),
        ("grad_layer_0_ff2_weight", 1.9190952834771433, -0.21973921317857878),
        ("grad_layer_0_time_a_weight", 0.6951798258355831, 0.3451500006579277),
        ("grad_layer_0_time_b_weight", 0.8763310333242919, 0.375133917650482),
        ("grad_layer_1_ff1_weight", 3.1159214066333907, 1.0266700760858376),
        ("grad_layer_1_ff2_weight", 2.2919569399811865, -0.7056554430049908),
        ("grad_layer_1_time_a_weight", 0.451643478732994, -0.19178841079914344),
        ("grad_layer_1_time_b_weight", 0.5040314075076847, -0.09404710523221155),
        ("grad_layer_2_ff1_weight", 8.23844634009113, 4.1183130601329045),
        ("grad_layer_2_ff2_weight", 4.880479218370358, 2.4851777806511564),
        ("grad_layer_2_time_a_weight", 0.4486245582045029, 0.028326339346559898),
        ("grad_layer_2_time_b_weight", 0.6270538605689766, 0.030928099094401335),
    ];
    agrees(&p, Some(&wiring), &expected);
}

#[test]
fn every_other_activation() {
    let of = |activation| {
        let p = Cfc { activation, mode: Mode::NoGate, backbone_units: 6, ..Cfc::new(3, 4, 2, 5) };
        timed(p)
    };
    let expected = [
        ("out", 6.7797107496820965, 2.765368280162884),
        ("final_state", 3.889959371252491, 2.520974970836319),
        ("grad_x", 2.555617578075429, -0.3640255204204557),
        ("grad_h0", 0.7436356274376179, 0.07954668538136765),
        ("grad_elapsed", 0.5849140482236013, -0.18888629048135636),
        ("grad_backbone_0_weight", 12.470254804769436, -9.981823441259861),
        ("grad_ff1_weight", 9.662427599698502, -8.6825499305515),
        ("grad_time_b_bias", 1.1059621825511394, -0.01743524806093437),
    ];
    agrees(&of(Activation::LecunTanh), None, &expected);
    let expected = [
        ("out", 5.193696464063683, 5.744182795951334),
        ("final_state", 2.371803229767656, 1.4149014547225343),
        ("grad_x", 2.4323489665121327, -0.4104294971760102),
        ("grad_h0", 1.5831400622988698, -0.16864440856593904),
        ("grad_elapsed", 0.3357686706423734, -0.1722170180578871),
        ("grad_backbone_0_weight", 14.823218636307082, 0.37084048323430663),
        ("grad_ff1_weight", 7.897493377333456, -7.980194596640654),
        ("grad_time_b_bias", 0.826410131838436, 0.0229265708068538),
    ];
    agrees(&of(Activation::Silu), None, &expected);
    let expected = [
        ("out", 5.569760490332157, 4.415665871213119),
        ("final_state", 2.9622503378575584, 2.218612190300048),
        ("grad_x", 2.5306896090325033, -1.2728003257236082),
        ("grad_h0", 1.3230502338851942, -0.26471339950390005),
        ("grad_elapsed", 0.4624148478138373, -0.17249791514126994),
        ("grad_backbone_0_weight", 11.83070814644426, -9.832640194369176),
        ("grad_ff1_weight", 7.734778751574651, -8.725990461367237),
        ("grad_time_b_bias", 0.9367973872715588, -0.045561658677833),
    ];
    agrees(&of(Activation::Tanh), None, &expected);
    let expected = [
        ("out", 5.901120003768503, 8.098321405940988),
        ("final_state", 2.736493329184442, 1.7842706318940407),
        ("grad_x", 3.4857434928429036, -1.0872798578158815),
        ("grad_h0", 2.2136928693941726, -0.5505263312046382),
        ("grad_elapsed", 0.49528817741606873, -0.32996021231944345),
        ("grad_backbone_0_weight", 20.02070122789995, 1.1205614645451991),
        ("grad_ff1_weight", 10.219219265883845, -11.514121433952116),
        ("grad_time_b_bias", 0.9011380771410415, -0.07840625322363015),
    ];
    agrees(&of(Activation::Relu), None, &expected);
}
