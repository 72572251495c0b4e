"""The programming model on one page: hosts, procs, actors, calls, slices, errors.

monarch-hpc run --local 2 examples/hello_mesh.py
"""

import monarch_hpc
from monarch_hpc import Actor, endpoint


class Greeter(Actor):
    def __init__(self, greeting: str) -> None:
        self.greeting = greeting
        self.num_calls = 0

    @endpoint
    def greet(self, name: str) -> str:
        self.num_calls += 1
        print(f"about to greet {name}")  # arrives at the controller with rank and host
        return f"{self.greeting}, {name}, from {monarch_hpc.context().proc.host}"

    @endpoint
    async def divide(self, a: float, b: float) -> float:
        return a / b


hosts = monarch_hpc.hosts()  # the allocation that `monarch-hpc run` chose
procs = hosts.spawn_procs(per_host={"gpus": 2})  # two procs on each host
greeters = procs.spawn("greeter", Greeter, "hello")  # one actor in each proc

for point, answer in greeters.greet.call("world").get():  # all of them
    print(point, answer)

one = greeters.slice(hosts=0, gpus=1)  # one of them
print(one.greet.call_one("you").get(timeout=10))
greeters.slice(gpus=0).greet.broadcast("everybody with gpus=0")  # no answer wanted

try:
    one.divide.call_one(1, 0).get()
except ZeroDivisionError as error:  # remote errors keep their class and carry their traceback
    print("caught:", error)
