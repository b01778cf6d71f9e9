"""How much of a cluster's time a training job will use, before it is run: by formula and by simulation.

    Plan ──formula──▶ Shares        in closed form, with the best interval and number of spares
      ├──simulate──▶ Account        failures drawn at random, over many days
      └──fleet─────▶ Account        the same with Holdfast's own coordinator, members and agents

`holdfast forecast` shows all three.
"""
