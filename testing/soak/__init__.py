"""The soak: agents at work for minutes while everything around them fails at random.

    python -m commitline.testing.soak --seconds 120 --seed 7

Runs are started, and requests sent to conversations, without pause on three worker processes.
Meanwhile workers are killed, frozen and told to go, Postgres is restarted, the connections to
it are cut, frozen and delayed, the provider fails before and after its effects, some runs are
stopped, some requests are sent twice, and some conversations lose their run. Then all of that
ends, every run and every request is waited for, and the world is judged from outside: what the
provider did, what the ledger says and what the models were told must agree.

One seed decides what each run does, which faults come and how the provider behaves. What the
faults hit depends on timing too, so a seed makes a soak alike, not the same.
"""
