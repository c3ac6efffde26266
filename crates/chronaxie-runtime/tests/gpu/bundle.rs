//! Calls whose launches go to a stream as one graph.

use super::{device, floats, kernel, scale};
use chronaxie_runtime::cuda::{
    Arg, Bundle, CudaDevice, DeviceBuffer, Graph, LaunchConfig, StreamRef, download, fill_bytes, upload_on,
};
use chronaxie_runtime::{Dtype, Error, Place, Result, ViewMut};

#[test]
fn calls_alike_become_a_graph_and_others_do_not() {
    let Some(d) = device() else { return };
    let stream = d.new_stream().unwrap();
    let (k, n) = (kernel(&d, "toy_scale"), 1000);
    let buffers: Vec<_> = (0..4).map(|_| upload_on(&d, &stream, &vec![1f32; n], [n]).unwrap()).collect();
    // z <- 2 b (2 a x + 3) + 3 by way of y.
    let call = |bundle: &Bundle, on: StreamRef, [x, y, z]: [usize; 3], a: f32, b: f32| {
        bundle.run(&d, on, || {
            scale(&k, on, &buffers[x], &buffers[y], a, n)?;
            scale(&k, on, &buffers[y], &buffers[z], b, n)
        })
    };
    let all = |at: usize, value: f32| {
        stream.synchronize().unwrap();
        assert!(floats(&buffers[at], n).iter().all(|v| *v == value), "{} is not {value}", floats(&buffers[at], 1)[0]);
    };
    let bundle = Bundle::default();
    for i in 0..2 {
        call(&bundle, stream.as_ref(), [0, 1, 2], 0.5, i as f32).unwrap();
        assert!(!bundle.is_graph());
        all(2, 8.0 * i as f32 + 3.0);
    }
    // Every call with arguments of its own, none of which is awaited before the next is made.
    for i in 0..20 {
        call(&bundle, stream.as_ref(), [0, 1, 2 + i % 2], 0.5 * i as f32, 1.0).unwrap();
        assert!(bundle.is_graph());
    }
    all(2, 2.0 * (18.0 + 3.0) + 3.0);
    all(3, 2.0 * (19.0 + 3.0) + 3.0);

    // Inside of a capture, and from within a call, launches are what they are.
    // SAFETY: the buffers outlive the graph.
    let graph = unsafe { Graph::capture(&stream, || call(&bundle, stream.as_ref(), [0, 1, 3], 1.0, 1.0)) }.unwrap();
    assert!(graph.nodes() == 2 && bundle.is_graph());
    graph.launch(&stream).unwrap();
    all(3, 13.0);
    let inner = Bundle::default();
    for _ in 0..5 {
        bundle.run(&d, stream.as_ref(), || call(&inner, stream.as_ref(), [0, 1, 3], 2.0, 1.0)).unwrap();
    }
    assert!(bundle.is_graph() && !inner.is_graph());
    all(3, 17.0);

    // Another shape of a launch, one launch fewer, one more: what was kept back goes its way, and in time there is a graph
    // of the new kind.
    let config = LaunchConfig::linear(n + 256, 256);
    let shaped = |args: &[Arg<'_>]| -> Result<()> {
        // SAFETY: as in `scale`.
        unsafe { k.launch(&stream, &config, args) }
    };
    let args = |from: usize, to: usize, a: f32| {
        [Arg::U64(buffers[from].address()), Arg::U64(buffers[to].address()), Arg::F32(a), Arg::I64(n as i64)]
    };
    let changed = || {
        scale(&k, stream.as_ref(), &buffers[0], &buffers[1], 3.0, n)?;
        shaped(&args(1, 2, 1.0))
    };
    bundle.run(&d, stream.as_ref(), changed).unwrap();
    assert!(!bundle.is_graph());
    all(2, 21.0);
    for _ in 0..3 {
        bundle.run(&d, stream.as_ref(), changed).unwrap();
    }
    assert!(bundle.is_graph());
    bundle.run(&d, stream.as_ref(), || scale(&k, stream.as_ref(), &buffers[0], &buffers[1], 4.0, n)).unwrap();
    all(1, 11.0);
    all(2, 21.0);
    let bundle = Bundle::default();
    for _ in 0..4 {
        call(&bundle, stream.as_ref(), [0, 1, 2], 0.5, 1.0).unwrap();
    }
    let longer = || {
        scale(&k, stream.as_ref(), &buffers[0], &buffers[1], 5.0, n)?;
        scale(&k, stream.as_ref(), &buffers[1], &buffers[2], 1.0, n)?;
        scale(&k, stream.as_ref(), &buffers[2], &buffers[3], 1.0, n)
    };
    bundle.run(&d, stream.as_ref(), longer).unwrap();
    all(3, 61.0);

    // An error leaves nothing behind it, and neither does a panic.
    let bundle = Bundle::default();
    for _ in 0..4 {
        call(&bundle, stream.as_ref(), [0, 1, 2], 0.5, 1.0).unwrap();
    }
    all(2, 11.0);
    let failing = || scale(&k, stream.as_ref(), &buffers[0], &buffers[2], 7.0, n).and(Err(Error::value("from inside")));
    assert_eq!(bundle.run(&d, stream.as_ref(), failing).unwrap_err().to_string(), "from inside");
    all(2, 11.0);
    for _ in 0..3 {
        call(&bundle, stream.as_ref(), [0, 1, 2], 0.5, 1.0).unwrap();
    }
    assert!(bundle.is_graph());
    let panics = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        bundle.run(&d, stream.as_ref(), || {
            scale(&k, stream.as_ref(), &buffers[0], &buffers[2], 7.0, n)?;
            panic!("inside")
        })
    }));
    assert!(panics.is_err());
    scale(&k, stream.as_ref(), &buffers[0], &buffers[2], 9.0, n).unwrap();
    all(2, 21.0);

    // A fill between launches takes place between them, and such calls are not kept back again.
    let bundle = Bundle::default();
    for i in 0..9 {
        bundle
            .run(&d, stream.as_ref(), || {
                scale(&k, stream.as_ref(), &buffers[0], &buffers[1], 5.0, n)?;
                if i >= 3 {
                    // SAFETY: nobody else uses the buffer.
                    let mut view = unsafe {
                        let place = Place::Cuda(d.index());
                        ViewMut::from_raw(buffers[1].address() as *mut u8, Dtype::F32, [n].into(), &[1], place)
                    };
                    fill_bytes(&mut view, 0, &stream)?;
                }
                scale(&k, stream.as_ref(), &buffers[1], &buffers[2], i as f32, n)
            })
            .unwrap();
        all(2, if i < 3 { 26.0 * i as f32 + 3.0 } else { 3.0 });
        assert_eq!(bundle.is_graph(), i == 2);
    }

    // A graph is of one stream, until it is called on another for long.
    let (bundle, other) = (Bundle::default(), d.new_stream().unwrap());
    for _ in 0..4 {
        call(&bundle, stream.as_ref(), [0, 1, 2], 0.5, 1.0).unwrap();
    }
    stream.synchronize().unwrap();
    for i in 0..30 {
        call(&bundle, other.as_ref(), [0, 1, 2], i as f32, 1.0).unwrap();
        other.synchronize().unwrap();
        all(2, 2.0 * (2.0 * i as f32 + 3.0) + 3.0);
        assert_eq!(bundle.is_graph(), !(16..18).contains(&i), "call {i}");
    }
}

/// Clusters, grid-wide barriers and dynamic shared memory are what they are in a launch; what a launch would be refused for, too.
#[test]
fn a_graph_keeps_the_shapes_of_its_launches() {
    let Some(d) = device() else { return };
    let (stream, a) = (d.new_stream().unwrap(), d.attributes().unwrap());
    if !a.cooperative_launch || !a.cluster_launch {
        println!("skipped: {} has no clusters", d.name());
        return;
    }
    let [shared, grid, cluster] = ["toy_shared", "toy_grid", "toy_cluster"].map(|entry| kernel(&d, entry));
    let most = a.shared_per_block_optin;
    shared.set_max_dynamic_shared(most).unwrap();
    let blocks = grid.max_active_blocks(64, 0).unwrap() * a.sm_count;
    let floats_out = upload_on(&d, &stream, &[0f32; 16], [16]).unwrap();
    let counters: Vec<_> = (0..5).map(|_| upload_on(&d, &stream, &[0i32], [1]).unwrap()).collect();
    let seen = upload_on(&d, &stream, &vec![0i32; blocks as usize], [blocks as usize]).unwrap();
    let ranks = upload_on(&d, &stream, &[9i32; 16], [16]).unwrap();
    let bundle = Bundle::default();
    let call = |counter: usize, bytes: u32, blocks: u32, size: u32| {
        let (wide, barrier) =
            (LaunchConfig::new((2, 1, 1), (128, 1, 1)), LaunchConfig::new((blocks, 1, 1), (64, 1, 1)));
        let clusters = LaunchConfig { cluster: Some((size, 1, 1)), ..LaunchConfig::new((16, 1, 1), (32, 1, 1)) };
        let barrier = LaunchConfig { cooperative: true, ..barrier };
        let work = || {
            // SAFETY: the kernels write two floats, a counter and an integer a block, and sixteen integers.
            unsafe {
                shared.launch(
                    &stream,
                    &wide.shared(bytes),
                    &[floats_out.address().into(), ((bytes / 4) as i32).into()],
                )?;
                grid.launch(&stream, &barrier, &[counters[counter].address().into(), seen.address().into()])?;
                cluster.launch(&stream, &clusters, &[ranks.address().into()])
            }
        };
        bundle.run(&d, stream.as_ref(), work)
    };
    for at in 0..4 {
        fill_of(&d, &seen, blocks as usize);
        call(at, most, blocks, 8).unwrap();
        assert_eq!(bundle.is_graph(), at >= 2);
        assert_eq!(floats(&floats_out, 3), [(most / 4) as f32, (most / 4) as f32, 0.0]);
        let seen: Vec<i32> = download(&seen.view(Dtype::I32, [blocks as usize]).unwrap()).unwrap();
        assert!(seen.iter().all(|s| *s == blocks as i32));
        let expected: Vec<i32> = (0..16).map(|b| b % 8).collect();
        assert_eq!(download::<i32>(&ranks.view(Dtype::I32, [16]).unwrap()).unwrap(), expected);
    }
    // More blocks than run at once: whether as a graph or in place of one, the sentence is the launch's.
    let bundle = Bundle::default();
    let refused = || {
        let config = LaunchConfig { cooperative: true, ..LaunchConfig::new((blocks + 1, 1, 1), (64, 1, 1)) };
        // SAFETY: these launches are refused.
        unsafe {
            for _ in 0..2 {
                grid.launch(&stream, &config, &[counters[4].address().into(), seen.address().into()])?;
            }
        }
        Ok(())
    };
    for _ in 0..4 {
        let e = bundle.run(&d, stream.as_ref(), refused).unwrap_err().to_string();
        assert!(e.contains("toy_grid") && e.contains("cooperative"), "{e}");
        assert!(!bundle.is_graph());
    }
    stream.synchronize().unwrap();
}

/// Zeros in a buffer of `n` integers.
fn fill_of(d: &std::sync::Arc<CudaDevice>, buffer: &DeviceBuffer, n: usize) {
    // SAFETY: nobody else uses the buffer.
    let mut view =
        unsafe { ViewMut::from_raw(buffer.address() as *mut u8, Dtype::I32, [n].into(), &[1], Place::Cuda(d.index())) };
    fill_bytes(&mut view, 0, buffer.stream()).unwrap();
}
