def test_smoke(shared, name):
    import time
    t = shared.client
    t.create_dataset(name, budget=1.0)
    run = t.run(name, "r")
    a=time.time()
    for _ in range(3):
        d = run.charge(list(range(50)), [1.0] * 50, noise_stddev=1.0)
    print(d.admitted.sum(), time.time()-a); a=time.time()
    shared.audit()
    print(time.time()-a); a=time.time()
    shared.audit()
    print(time.time()-a)
